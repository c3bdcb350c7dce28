"""Chunked fused linear loss: from hidden states and lm_head to their gradients, without holding all
logits.

For each chunk of rows, one product writes the logits to a buffer that all chunks share; it is in
float32, so that a log-prob is not rounded to bfloat16. The loss kernel overwrites the logits with
their gradient. Two products with it are added to the gradients of hidden and weight: three products
in all.

With `compact`, rows without gradient (masked, clipped, of zero advantage) are left out of the
products; the result is the same. The host then waits for the device once per chunk, to learn how
many rows remain. If logits stay on chip, a token-local loss waits only once (ranked.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import slices
from forgedsl_runtime.losses.fused import Evaluation
from forgedsl_runtime.losses.rescale import scaled_rows

CHUNK_ROWS = 4096
"""Rows per chunk. Fewer make the products slow, more cost memory."""


class LinearEvaluation(Evaluation):
    """Logits are `hidden @ weight.T`, `hidden [R, H]`, `weight [V, H]`."""

    def __init__(
        self,
        *args: Any,
        hidden: Tensor,
        weight: Tensor,
        chunk_rows: int | None,
        compact: bool,
        logits_dtype: torch.dtype | None,
    ) -> None:
        super().__init__(*args, vocabulary=weight.shape[0])
        index = self.rows.index
        self.num_source = hidden.shape[0]
        # Clear masked rows: their content must not reach the loss, and 0 times NaN is NaN.
        clean = scaled_rows(hidden, valid=self.rows.valid) if index is None else hidden[index]
        self.hidden = clean
        self.weight, self.compact = weight, compact
        self.mixed = hidden.is_cuda and hidden.dtype == weight.dtype != self.rows.dtype
        self.logits_dtype = logits_dtype or self.rows.dtype
        self.chunk = min(chunk_rows or CHUNK_ROWS, max(1, self.rows.num_kept))
        self.d_hidden: Tensor | None = None
        self.d_weight: Tensor | None = None

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        self._start(needed)
        if not any(needed):
            self._launch_over_chunks("statistics", "statistics")
            self.finish()
        elif self.kernels.local:
            self.prepare()
            self._launch_over_chunks("fused", "fused")
            self.finish()
            self.kernel = f"triton/linear/{self.ran or 'fused'}"
        elif (whole := self._whole_sequences()) is not None:
            self.chunk = whole
            self._launch_over_chunks("coupled", "two-phase")
        else:
            self._launch_over_chunks("statistics", "recomputed")
            self.finish()
            self._launch_over_chunks("apply", "recomputed")
        self._end(needed)

    def _whole_sequences(self) -> int | None:
        """Return the chunk size, reduced such that a chunk holds whole sequences. None if a
        sequence is longer than a chunk, or if lengths are unknown."""
        if self.rows.num_kept <= self.chunk:
            return self.chunk
        unit = self.rows.seq_len * (2 if self.rows.paired else 1)
        return self.chunk // unit * unit if 0 < unit <= self.chunk else None

    @property
    def num_active(self) -> int:
        """Upper bound of the number of rows in the products of gradients."""
        return self.rows.num_kept

    def _chunks(self) -> Iterator[slice]:
        return slices(self.rows.num_kept, self.chunk)

    def _start(self, needed: tuple[bool, ...]) -> None:
        self.buffer = self._workspace(needed)
        if any(needed) and needed[0]:
            self.d_hidden = torch.empty_like(self.hidden)
        self.needs_weight = any(needed) and needed[1]

    def _workspace(self, needed: tuple[bool, ...]) -> Tensor:
        """Allocate the buffer that all chunks share."""
        count = min(self.chunk, self.rows.num_kept)
        return self.hidden.new_empty((count, self.vocabulary), dtype=self.logits_dtype)

    def _launch_over_chunks(self, step: str, name: str) -> None:
        self.kernel = f"triton/linear/{name}"
        for rows in self._chunks():
            logits = self._logits(rows)
            gradient = None if step == "statistics" else self._gradient(logits)
            if step == "coupled":
                self.launch_over_rows("statistics", logits, None, rows)
                self.finish()
                self.launch_over_rows("apply", logits, gradient, rows)
            else:
                self.launch_over_rows(step, logits, gradient, rows)
            if gradient is not None:
                self._push(gradient, rows)

    def _logits(self, rows: slice) -> Tensor:
        buffer = self.buffer[: rows.stop - rows.start]
        hidden = self.hidden[rows]
        if self.mixed and buffer.dtype != hidden.dtype:
            return torch.mm(hidden, self.weight.t(), out_dtype=buffer.dtype, out=buffer)
        if hidden.dtype == self.weight.dtype == buffer.dtype:
            return torch.mm(hidden, self.weight.t(), out=buffer)
        return torch.mm(hidden.to(buffer.dtype), self.weight.t().to(buffer.dtype), out=buffer)

    def _gradient(self, logits: Tensor) -> Tensor:
        """Return the memory of the logits as the gradient's buffer, in the dtype of the
        products."""
        if not self.mixed or logits.dtype == self.weight.dtype:
            return logits
        return logits.view(self.weight.dtype)[:, : self.vocabulary]

    def _push(self, gradient: Tensor, rows: slice, factor: Tensor | None = None) -> None:
        """Add the products with these rows' logits gradient to the gradients of hidden and weight.
        `factor` is a factor per row that `gradient` lacks."""
        hidden, place = self.hidden[rows], rows
        if self.compact:
            active = self._active(rows).nonzero().squeeze(1)  # waits for the device
            if active.numel() < gradient.shape[0]:
                gradient, hidden = gradient.index_select(0, active), hidden[active]
                factor = None if factor is None else factor[active]
                place = active + rows.start
                if self.d_hidden is not None:
                    self.d_hidden[rows] = 0.0
        same = gradient.dtype == self.weight.dtype
        if self.d_hidden is not None:
            weight = self.weight if same else self.weight.to(gradient.dtype)
            direct = isinstance(place, slice) and same and hidden.dtype == gradient.dtype
            out = self.d_hidden[place] if direct else None
            found = torch.mm(gradient, weight, out=out)
            if factor is not None:
                scaled_rows(found, factor=factor, inplace=True)
            if not direct:
                self.d_hidden[place] = found.to(hidden.dtype)
        if self.needs_weight:
            if factor is not None:
                hidden = scaled_rows(hidden, factor=factor)
            self._push_weight(gradient, hidden)

    def _push_weight(self, gradient: Tensor, hidden: Tensor) -> None:
        """Add to the gradient of the weight. The sum is in float32. With at most two chunks it is
        in the weight's own dtype, which costs only one more rounding."""
        few = self.num_active <= 2 * self.chunk
        if self.mixed and few:
            if self.d_weight is None:
                self.d_weight = gradient.t() @ hidden
            else:
                torch.addmm(self.d_weight, gradient.t(), hidden, out=self.d_weight)
        elif self.mixed and self.d_weight is None:
            self.d_weight = torch.mm(gradient.t(), hidden, out_dtype=torch.float32)
        elif self.d_weight is None:
            self.d_weight = gradient.t() @ hidden.to(gradient.dtype)
        elif self.mixed:
            sums = self.d_weight
            torch.addmm(sums, gradient.t(), hidden, out_dtype=torch.float32, out=sums)
        else:
            self.d_weight.addmm_(gradient.t(), hidden.to(gradient.dtype))

    def _active(self, rows: slice) -> Tensor:
        """True for rows that have a gradient."""
        found: Tensor = self.rows.valid[rows]
        if self.kernels.local:
            active: Tensor = self.arguments["active"][rows]
            return found & active
        parts = [self.arguments[f"d_{n}_ptr"][rows] != 0 for n in self.kernels.module.GRADIENTS]
        return found & torch.stack(parts).any(0)

    def _end(self, needed: tuple[bool, ...]) -> None:
        if not any(needed):
            return
        if self.d_hidden is not None and self.rows.index is not None:
            whole = self.d_hidden.new_zeros((self.num_source, self.d_hidden.shape[1]))
            self.d_hidden = whole.index_copy_(0, self.rows.index, self.d_hidden)
        if self.needs_weight:
            if self.d_weight is None:
                self.d_weight = torch.zeros_like(self.weight)
            self.d_weight = self.d_weight.to(self.weight.dtype)
        self.gradients = (self.d_hidden, self.d_weight)
        del self.buffer


def add_product(sums: Tensor, left: Tensor, right: Tensor, *, new: bool = False) -> None:
    """Compute `sums += left @ right` in the dtype of the sums; `new` sums are overwritten."""
    mixed = sums.is_cuda and left.dtype == right.dtype != sums.dtype
    if not mixed:
        left, right = left.to(sums.dtype), right.to(sums.dtype)
    more: dict[str, Any] = {"out_dtype": sums.dtype} if mixed else {}
    if new:
        torch.mm(left, right, out=sums, **more)
    else:
        torch.addmm(sums, left, right, out=sums, **more)
