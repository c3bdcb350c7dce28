"""A loss by its generated kernels, from logits or from hidden states and lm_head.

    token-local       fused: a row is read, its gradient computed, and written back
    coupled           three kernels: `statistics`, `sequences` (over tokens), `apply`

    from logits       one launch over all rows, the gradient in a tensor of its own or in place
    linear            chunks of rows: logits in float32, their gradient in the same memory, then
                      the two products; coupled losses whose sequences do not fit in a chunk
                      compute the logits twice

Forward computes the gradients for an upstream gradient of 1. Backward multiplies them in place by
the real one, with a kernel that returns at once if that is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import Rows
from forgedsl_runtime.losses.kernels import (
    INTERPRETED_BLOCK,
    SEQUENCE_BLOCK,
    SEQUENCE_OPTIONS,
    Config,
    Kernels,
    can_overlap,
    config,
    num_processors,
    scale,
    tma_descriptor,
)
from forgedsl_runtime.losses.rescale import rescale


class Evaluation:
    """One evaluation: the arguments of all kernels by name, and their results."""

    def __init__(
        self,
        kernels: Kernels,
        rows: Rows,
        step: SimpleNamespace,
        temperature: float,
        *,
        vocabulary: int,
    ) -> None:
        import triton.language as tl

        self.kernels, self.rows, self.vocabulary = kernels, rows, vocabulary
        self.device = rows.labels.device
        self.metrics: dict[str, Tensor] = {}
        self.gradients: tuple[Tensor | None, ...] | None = None
        self.kernel = self.ran = ""
        module, dtype = kernels.module, rows.dtype
        count = rows.num_kept
        # a multiple of 16 for any count, or kernels would be recompiled
        aligned = -(-count // 16) * 16
        self.statistics = torch.empty(
            (len(module.STATISTICS), aligned), dtype=dtype, device=self.device
        )[:, :count]
        empty_batch = rows.num_sequences == 0
        blank = torch.zeros if empty_batch else torch.empty
        self.results = blank(len(module.RESULTS), dtype=dtype, device=self.device)
        programs = rows.num_sequences // (2 if rows.paired else 1)
        self.programs = programs
        self.arguments: dict[str, Any] = {
            "labels": rows.labels,
            "mask": rows.mask,
            "ignore_index": rows.ignore_index,
            "scale": scale(temperature, vocabulary, dtype, self.device),
            "num_rows": count,
            "seq_len": rows.seq_len,
            "V": vocabulary,
            "ACC": tl.float64 if dtype == torch.float64 else tl.float32,
            "PADDED": rows.seq_len > 0,
            "OVERLAP": can_overlap(self.device),
            "parts": torch.empty((module.NUM_PARTS, programs), dtype=dtype, device=self.device),
            "done": kernels.counter(self.device, "done"),
            "results": self.results,
        }
        self._bind_inputs(step)

    def _bind_inputs(self, step: SimpleNamespace) -> None:
        """Add the inputs and outputs of the generated row code to the kernel arguments."""
        rows, module = self.rows, self.kernels.module
        packed = rows.seq_len == 0
        self.arguments["seq_ids"] = rows.seq_id if packed else rows.labels
        self.arguments["starts"] = rows.starts if packed else rows.labels
        for name, value in zip(module.STATISTICS, self.statistics, strict=True):
            self.arguments[f"{name}_ptr"] = value
        for name, value in (*rows.tokens.items(), *rows.sequences.items()):
            self.arguments[f"{name}_ptr"] = self.arguments[f"{name}__ptr"] = value.contiguous()
        for name, value in vars(step).items():
            self.arguments[f"step_{name}_ptr"] = value
        count = rows.num_kept
        self.arguments["active"] = torch.empty(count, dtype=torch.bool, device=self.device)
        if not self.kernels.local:
            for name in module.GRADIENTS:
                empty = torch.empty(count, dtype=rows.dtype, device=self.device)
                self.arguments[f"d_{name}_ptr"] = empty

    def forward(self, needed: tuple[bool, ...]) -> Tensor:
        """Return the loss; set `metrics` and, if needed, `gradients`."""
        self.evaluate(needed)
        names = self.kernels.module.RESULTS
        found = dict(zip(names, self.results.unbind(), strict=True))
        loss: Tensor = found.pop("loss")
        self.metrics = found
        return loss

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        raise NotImplementedError

    def backward(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, multiplied by `grad`.

        Raises:
            RuntimeError: it was called before; the first call uses the gradients up.
        """
        if self.gradients is None:
            raise RuntimeError(
                "backward ran a second time on this loss, but its gradient buffer is used up by "
                "the first; evaluate the loss again instead of passing retain_graph=True"
            )
        gradients, self.gradients = self.gradients, None
        for gradient in gradients:
            if gradient is not None:
                rescale(gradient, grad)
        return gradients

    # ---- launches

    def prepare(self) -> None:
        """Compute the sums over a sequence, pair or batch that the kernels of single rows read."""
        sums = self.kernels.module.SUMS
        for name, (index, dtype) in sums.items():
            size = {"seq": self.rows.num_sequences, "pair": self.programs, "": 1}[index]
            kind = torch.bool if dtype == "bool" else self.rows.dtype
            self.arguments[f"{name}_ptr"] = torch.empty(size, dtype=kind, device=self.device)
        if sums:
            self._sequences("prepare")

    def finish(self) -> None:
        """Compute the loss, its reports, and for coupled losses the gradients of the statistics."""
        self._sequences("sequences")

    def _sequences(self, name: str) -> None:
        block = SEQUENCE_BLOCK if self.device.type == "cuda" else INTERPRETED_BLOCK
        arguments = {**self.arguments, "BLOCK": block}
        self.kernels.launch(name, self.programs, arguments, **SEQUENCE_OPTIONS)

    def launch_over_rows(
        self, name: str, logits: Tensor, gradient: Tensor | None, rows: slice = slice(None)
    ) -> None:
        """Launch a kernel over the vocabulary, for the rows of `logits`."""
        chosen = self.config(name, logits)
        arguments = self._of_rows(rows)
        arguments |= {"logits": logits, "row_stride": logits.stride(0)}
        arguments |= {"num_rows": logits.shape[0], "BLOCK": chosen.block}
        if gradient is not None:
            shared = gradient.data_ptr() == logits.data_ptr()
            arguments |= {
                "gradient": gradient,
                "gradient_stride": gradient.stride(0),
                "NARROW": shared and gradient.element_size() < logits.element_size(),
            }
        grid = min(logits.shape[0], chosen.programs * num_processors(self.device))
        options: dict[str, Any] = dict(chosen.options)
        if name == "fused" and chosen.kernel and self._aligned(logits):
            name = f"fused_{chosen.kernel}"
            arguments["words_of"], arguments["INNER"] = tma_descriptor(logits, chosen.block)
            if chosen.kernel == "row":
                grid = logits.shape[0]
            elif chosen.kernel == "pair":
                grid = 2 * min(logits.shape[0], num_processors(self.device) // 2)
                arguments |= self._exchange_buffers() | self._ring(chosen, arguments["INNER"])
                options |= {"launch_cooperative_grid": True}
            else:
                arguments |= self._ring(chosen)
            arguments["PARTS"] = chosen.parts
        self.kernels.launch(name, grid, arguments, **options)
        self.ran = name

    def decide(self, rows: slice) -> None:
        """Compute the gradients of the statistics of these rows, for a token-local loss."""
        count = rows.stop - rows.start
        arguments = self._of_rows(rows) | {"num_rows": count}
        grid = min(count, 16 * num_processors(self.device))
        self.kernels.launch("decide", grid, arguments, num_warps=1)

    def _of_rows(self, rows: slice) -> dict[str, Any]:
        """Return the arguments of a kernel for a range of rows."""
        arguments = dict(self.arguments)
        if rows == slice(None):
            return arguments
        for key in ("labels", "mask", "seq_ids", "active", *self._row_arguments()):
            if arguments.get(key) is not None:
                arguments[key] = arguments[key][rows]
        if self.rows.seq_len:  # the position of a row in a chunk does not give its sequence
            arguments |= {"seq_ids": self.rows.seq_id[rows], "PADDED": False}
        return arguments

    def _aligned(self, logits: Tensor) -> bool:
        """True if the copy engine can fetch rows: bf16 with 16-byte alignment."""
        size = logits.element_size()
        widths = (self.vocabulary * size, logits.stride(0) * size, logits.data_ptr())
        return logits.dtype == torch.bfloat16 and all(width % 16 == 0 for width in widths)

    def _exchange_buffers(self) -> dict[str, Any]:
        """Return the memory through which the two programs of a row exchange results. Each waits
        for the other, so all programs must run at once: the launch is cooperative, and does not
        overlap with the kernel before it."""
        most = num_processors(self.device)
        mail = self.kernels.counter(self.device, "mail", most, 2, 8).view(torch.int64)
        turns = self.kernels.counter(self.device, "turns", most)
        return {"mail": mail, "turns": turns, "OVERLAP": False}

    def _ring(self, chosen: Config, inner: int = 0) -> dict[str, Any]:
        """Return the number of slots of the ring buffer in shared memory, and of tiles kept in
        registers. With `inner`, a row is split over two multiprocessors, and the numbers are for
        one half of the row: its length is rounded up to a multiple of `inner` words."""
        half = inner and 2 * inner * -(-self.vocabulary // (4 * inner))
        tiles = -(-(half or self.vocabulary) // chosen.block)
        ahead = min(chosen.ahead, tiles)
        slots = min(chosen.slots, tiles + ahead)
        held = tiles + ahead - slots
        lead = min(chosen.lead, max(0, held - 1))
        taken = self.kernels.counter(self.device, "taken")
        return {"SLOTS": slots, "HELD": held, "LEAD": lead, "taken": taken}

    def config(self, name: str, logits: Tensor) -> Config:
        return config(name, self.vocabulary, logits.dtype, self.device)

    def _row_arguments(self) -> Iterator[str]:
        module = self.kernels.module
        yield from (f"{name}_ptr" for name in module.STATISTICS)
        yield from (f"d_{name}_ptr" for name in module.GRADIENTS)
        for name in self.rows.tokens:
            yield from (f"{name}_ptr", f"{name}__ptr")


class LogitsEvaluation(Evaluation):
    """Evaluation from given logits `[R, V]`; their gradient is written to a new tensor or in
    place."""

    def __init__(self, *args: Any, logits: Tensor, inplace: bool) -> None:
        super().__init__(*args, vocabulary=logits.shape[1])
        self.logits, self.inplace = logits, inplace

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        gradient = None
        if any(needed):
            gradient = self.logits if self.inplace else torch.empty_like(self.logits)
            self.gradients = (gradient,)
        if gradient is not None and self.kernels.local:
            self.prepare()
            self.launch_over_rows("fused", self.logits, gradient)
            self.finish()
            self.kernel = f"triton/logits/{self.ran}"
            return
        self.kernel = "triton/logits/statistics" if gradient is None else "triton/logits/two-phase"
        self.launch_over_rows("statistics", self.logits, None)
        self.finish()
        if gradient is not None:
            self.launch_over_rows("apply", self.logits, gradient)
