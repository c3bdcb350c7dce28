"""Linear losses on chip that leave rows without gradient out of the products: `compact`.

    rank 0   rows with gradient             all three products
    rank 1   valid rows whose gradient is   the first product, for their statistics
             zero by an input (advantage 0)
    rank 2   rows that do not count         nothing

Some inputs of a token-local loss, such as an advantage, make the gradient of a row zero if they are
zero, whatever its log-prob. The kernels list them in `SILENT`. So the ranks are known before
anything is computed. Rows are sorted by rank. The rows with gradient then come first, so products
take a slice of a chunk and copy nothing. The host reads the number of rows of each rank while the
first chunk is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import Rows, select_rows
from forgedsl_runtime.losses.fused import Evaluation
from forgedsl_runtime.losses.kernels import Kernels
from forgedsl_runtime.losses.onchip import OnChipEvaluation


class RankedEvaluation(OnChipEvaluation):
    """Rows sorted by rank. `plain` holds them in the original order, for kernels that walk
    sequences."""

    def __init__(
        self, kernels: Kernels, rows: Rows, step: SimpleNamespace, temperature: float, *,
        hidden: Tensor, weight: Tensor, chunk_rows: int | None,
    ) -> None:  # fmt: skip
        rank = row_ranks(kernels.module.SILENT, rows)
        self.sizes = OnHost(torch.stack([(rank < 1).sum(), (rank < 2).sum()]))
        self.order = rank.argsort(stable=True)
        self.plain = Evaluation(kernels, rows, step, temperature, vocabulary=weight.shape[0])
        super().__init__(
            kernels, select_rows(rows, self.order), step, temperature, hidden=hidden, weight=weight,
            chunk_rows=chunk_rows, compact=False, logits_dtype=None,
        )  # fmt: skip
        self.results = self.plain.results

    @property
    def num_active(self) -> int:
        return self.sizes()[0]

    @property
    def num_counted(self) -> int:
        return self.sizes()[1]

    def prepare(self) -> None:
        self.plain.prepare()
        sums = [f"{name}_ptr" for name in self.kernels.module.SUMS]
        self.arguments |= {name: self.plain.arguments[name] for name in sums}

    def finish(self) -> None:
        count = self.num_counted
        found = self.statistics[:, :count]
        self.plain.statistics.zero_().index_copy_(1, self.order[:count], found)
        self.plain.finish()

    def _chunks(self) -> Iterator[slice]:
        """Yield chunks of rows. The first one does not wait for the sizes, so that the device is
        busy meanwhile."""
        for rows in super()._chunks():
            stop = min(rows.stop, self.num_counted) if rows.start else rows.stop
            if rows.start < stop:
                yield slice(rows.start, stop)

    def _weights(self, rows: slice) -> None:
        if rows.start and rows.start >= self.num_active:
            self.product.statistics(rows)
        else:
            super()._weights(rows)

    def _gradients(self, rows: slice, out: Tensor) -> None:
        stop = min(rows.stop, self.num_active)
        if rows.start < stop:
            super()._gradients(slice(rows.start, stop), out[: stop - rows.start])

    def _end(self, needed: tuple[bool, ...]) -> None:
        if self.d_hidden is not None:
            self.d_hidden[self.num_active :] = 0.0
        super()._end(needed)


class OnHost:
    """Numbers being copied from the device to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self.copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        self.copy.copy_(numbers, non_blocking=True)
        self.arrival: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self.arrival = torch.cuda.current_stream(numbers.device).record_event()

    def __call__(self) -> list[int]:
        """Wait for the copy and return the numbers."""
        if self.arrival is not None:
            self.arrival.synchronize()
        found: list[int] = self.copy.tolist()
        return found


def row_ranks(silent: Mapping[str, str], rows: Rows) -> Tensor:
    """Return the rank of each row: 0 if it may have a gradient, 1 if a silent input is zero there,
    2 if it is invalid. `silent` maps inputs to the index of their entries: row, seq or pair."""
    found = torch.zeros_like(rows.valid)
    for name, index in silent.items():
        if index == "row":
            found |= rows.tokens[name] == 0
        else:
            numbers = rows.seq_id // 2 if index == "pair" else rows.seq_id
            found |= (rows.sequences[name] == 0)[numbers]
    return torch.where(rows.valid, found.to(torch.uint8), 2)
