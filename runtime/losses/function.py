"""LossFunction: a generated loss module as a callable on logits, or on hidden states and lm_head.

    loss(logits=..., labels=..., ...)            ->  LossOutput(loss, metrics, kernel)
    loss.linear(hidden=..., weight=..., ...)     ->  the same, without ever holding the logits

By the generated Triton kernels on a GPU (`fused`, `linear`), by the torch module elsewhere
(`chunked`).
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from forgedsl.lower import job
from forgedsl.runtime.losses import head as heads
from forgedsl.runtime.losses.batch import IGNORE_INDEX, ROW_STATISTICS, Rows, pack
from forgedsl.runtime.losses.chunked import Run
from forgedsl.runtime.losses.kernels import Kernels, require


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """`loss` has gradient; `metrics` has `entropy` and every report, as partial sums over the
    counts of the step; `kernel` names the implementation that ran."""

    loss: Tensor
    metrics: dict[str, Tensor]
    kernel: str


class LossFunction:
    """A loss that was declared in the language."""

    def __init__(self, spec: job.Loss, backend: str = "auto") -> None:
        self.name = spec.name
        self.spec = spec
        self.backend = backend
        self.kernels = Kernels(spec.name, spec.kernels)
        self.source = spec.source
        self.tree = spec.tree
        self.fields = spec.fields
        self.reports = spec.reports
        self.module = load_module(spec.name, spec.source)
        self.paired = any("P" in field.axes for field in spec.fields)

    @classmethod
    def from_job(cls, spec: job.Loss, backend: str = "auto") -> Self:
        """`backend` is "torch", "triton", or "auto": kernels on a GPU, torch elsewhere."""
        return cls(spec, backend)

    def using(self, backend: str) -> Self:
        """The same loss by another back end."""
        return type(self)(self.spec, backend)

    @property
    def kinks(self) -> tuple[str, ...]:
        """Where the gradient jumps: `min rl.forge:35:10`; there PyTorch's rules for ties hold."""
        return self.spec.kinks

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs a call must supply besides labels and mask."""
        return tuple(
            field.name for field in self.fields if field.name not in (*ROW_STATISTICS, "mask")
        )

    @property
    def phase(self) -> str:
        """token-local, sequence-coupled or batch-coupled."""
        return str(self.module.PHASE)

    def __call__(
        self,
        *,
        logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        totals: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        ignore_index: int = IGNORE_INDEX,
        chunk_rows: int | None = None,
        inplace: bool = False,
        **inputs: Tensor,
    ) -> LossOutput:
        """The loss of logits `[B, T, V]` or packed `[N, V]`; `logits[b, t]` scores `labels[b, t]`.

        Inputs are `[B, T]` or `[B]` as declared (packed: `[N]`, with `seq_id [N]`). `num_tokens`
        and `num_sequences` count the valid tokens, and the sequences that have one, of the whole
        optimizer step; without them this call is the whole step. `inplace` lets the kernels write
        the gradient over the logits: half the memory, and the logits are gone.
        """
        if logits.shape[:-1] != labels.shape:
            raise ValueError(
                f"logits {list(logits.shape)} do not fit labels {list(labels.shape)}: "
                "[B, T, V] and [B, T], or [N, V] and [N]"
            )
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        fused = self._fused(logits.device)
        compact = not (fused or logits.is_cuda)
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, dtype, compact)
        step = self._step(rows, num_tokens, num_sequences, totals)
        flat = logits.reshape(-1, logits.shape[-1])
        if not fused:
            source = heads.LogitsHead(flat.detach(), rows, dtype, chunk_rows)
            return self._apply(self._run(rows, step, source, temperature), flat)
        from forgedsl.runtime.losses.fused import LogitsEvaluation

        if inplace and logits.requires_grad:
            torch.autograd.graph.increment_version(logits)  # whoever saved it must notice
        data = flat.detach()
        data = data if data.stride(-1) == 1 else data.contiguous()
        run = LogitsEvaluation(self.kernels, rows, step, temperature, logits=data, inplace=inplace)
        return self._apply(run, flat)

    def linear(
        self,
        *,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        totals: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        ignore_index: int = IGNORE_INDEX,
        chunk_rows: int | None = None,
        compact: bool = False,
        logits_dtype: torch.dtype | None = None,
        **inputs: Tensor,
    ) -> LossOutput:
        """The loss of logits `hidden @ weight.T`: hidden `[N, H]` or `[B, T, H]`, weight `[V, H]`.

        Logits exist for `chunk_rows` rows at a time, in float32 unless `logits_dtype` says
        otherwise. `compact` leaves rows without gradient out of the products, exactly; it waits
        for the device once a chunk. The gradient of `weight` is that of a plain tensor; under FSDP
        pass the gathered weight.
        """
        check_linear(hidden, weight, labels)
        wide = torch.float64 in (hidden.dtype, weight.dtype)
        dtype = torch.float64 if wide else torch.float32
        flat = hidden.reshape(-1, hidden.shape[-1])
        fused = self._fused(hidden.device)
        drop = compact if fused else not hidden.is_cuda
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, dtype, drop)
        step = self._step(rows, num_tokens, num_sequences, totals)
        if not fused:
            source = heads.LinearHead(flat.detach(), weight.detach(), rows, dtype, chunk_rows)
            return self._apply(self._run(rows, step, source, temperature), flat, weight)
        from forgedsl.runtime.losses.linear import LinearEvaluation

        run = LinearEvaluation(
            self.kernels,
            rows,
            step,
            temperature,
            hidden=flat.detach(),
            weight=weight.detach(),
            chunk_rows=chunk_rows,
            compact=compact,
            logits_dtype=logits_dtype,
        )
        return self._apply(run, flat, weight)

    def _fused(self, device: torch.device) -> bool:
        """Whether the generated kernels run; raises if they must and cannot."""
        if self.backend == "triton":
            require(device)
        return self.backend == "triton" or (self.backend == "auto" and device.type == "cuda")

    def totals(
        self,
        *,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """The counts of this microbatch. Their sums over the step are the `totals` of a call."""
        compact = not labels.is_cuda
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, torch.float32, compact)
        return self._counts(rows)

    def _pack(
        self,
        inputs: Mapping[str, Tensor],
        labels: Tensor,
        mask: Tensor | None,
        seq_id: Tensor | None,
        ignore_index: int,
        dtype: torch.dtype,
        compact: bool,
    ) -> Rows:
        if seq_id is None and labels.dim() == 1 and "x.seq" in self.source:
            raise TypeError(f"loss {self.name} works on sequences: packed rows need seq_id [N]")
        return pack(
            self.fields,
            inputs,
            labels=labels,
            mask=mask,
            seq_id=seq_id,
            ignore_index=ignore_index,
            dtype=dtype,
            compact=compact,
        )

    def _counts(self, rows: Rows) -> dict[str, Tensor]:
        valid = rows.seq_valid
        if rows.paired:
            valid = valid.view(-1, 2).all(1).repeat_interleave(2)
        counts = {
            "num_tokens": rows.valid.sum().float(),
            "num_sequences": valid.sum().float(),
        }
        if self.module.TOTALS:
            counts.update(self.module.totals(rows.namespace(SimpleNamespace(), {})))
        return counts

    def _step(
        self,
        rows: Rows,
        num_tokens: float | Tensor | None,
        num_sequences: float | Tensor | None,
        totals: Mapping[str, Tensor] | None,
    ) -> SimpleNamespace:
        """The counts of the whole optimizer step, clamped to at least one."""
        given = {"num_tokens": num_tokens, "num_sequences": num_sequences}
        given = {name: value for name, value in given.items() if value is not None}
        given.update(totals or {})
        if not given:
            given.update(self._counts(rows))
        needed = ["num_tokens", *self.module.TOTALS]
        if "x.step.num_sequences" in self.source:
            needed.append("num_sequences")
        if missing := [name for name in needed if name not in given]:
            raise TypeError(
                f"loss {self.name} also needs {', '.join(missing)} of the whole step: "
                "add up LossFunction.totals(...) of its microbatches and pass totals="
            )
        device = rows.labels.device
        step = {
            name: value.to(device, rows.dtype)
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=rows.dtype, device=device)
            for name, value in given.items()
        }
        return SimpleNamespace(
            **{n: v if n.startswith("batch_sum") else v.clamp(min=1) for n, v in step.items()}
        )

    def _run(
        self, rows: Rows, step: SimpleNamespace, source: heads.Head, temperature: float
    ) -> Run:
        mean = "x.mean_logprob" in self.source
        return Run(self.module, rows, step, source, temperature, mean_logprob=mean)

    def _apply(self, run: Any, *sources: Tensor) -> LossOutput:
        loss = _Apply.apply(run, *sources)
        return LossOutput(loss=loss, metrics=run.metrics, kernel=run.kernel)


class _Apply(torch.autograd.Function):
    """Hands the gradients of a run to autograd."""

    @staticmethod
    def forward(ctx: Any, run: Any, *sources: Tensor) -> Tensor:
        ctx.run = run
        ctx.dtypes = [source.dtype for source in sources]
        with torch.no_grad():
            return run.forward(tuple(ctx.needs_input_grad[1:]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.run.backward(grad)
        typed = [
            None if gradient is None else gradient.to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        return None, *typed


def check_linear(hidden: Tensor, weight: Tensor, labels: Tensor) -> None:
    """Shapes of the linear form."""
    if hidden.shape[:-1] != labels.shape:
        raise ValueError(
            f"hidden {list(hidden.shape)} does not fit labels {list(labels.shape)}: "
            "[N, H] and [N], or [B, T, H] and [B, T]"
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"weight {list(weight.shape)} does not fit hidden {list(hidden.shape)}: [V, H]"
        )
    if hasattr(weight, "full_tensor"):
        raise TypeError("weight is a DTensor: pass weight.full_tensor()")


@functools.cache
def load_module(name: str, source: str) -> ModuleType:
    """The generated module, with its lines available to tracebacks."""
    filename = f"<loss {name}>"
    module = ModuleType(f"forgedsl_loss_{name}")
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    *,
    chunk_rows: int | None = None,
) -> Tensor:
    """The log-prob of each label, `[N]`, without gradient; logits are never kept."""
    check_linear(hidden, weight, labels)
    wide = torch.float64 in (hidden.dtype, weight.dtype)
    dtype = torch.float64 if wide else torch.float32
    rows = heads.every_row(labels)
    source = heads.LinearHead(hidden.detach(), weight.detach(), rows, dtype, chunk_rows)
    found = hidden.new_empty(labels.shape, dtype=dtype)
    with torch.no_grad():
        for rows in source.chunks():
            z = source.logits(rows) / temperature
            chosen = z.gather(1, labels[rows].unsqueeze(1)).squeeze(1)
            found[rows] = chosen - torch.logsumexp(z, dim=1)
    return found
