"""Linear losses within a workspace: neither all rows nor all of the vocabulary at a time.

    for rows, tiles      logits of a tile -> its statistics -> over all tiles: those of the rows
    once                 the loss, and its gradients with respect to the statistics
    for tiles, rows      logits again -> their gradient -> those of hidden and of the tile's weight

This takes four products instead of three. Besides the gradients of weight and hidden (summed in
float32), it needs at most `workspace` bytes, for any number of rows and any vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from forgedsl_runtime.losses import head as heads
from forgedsl_runtime.losses.batch import ROW_STATISTICS, Rows, slices
from forgedsl_runtime.losses.chunked import Run
from forgedsl_runtime.losses.parallel import merge

GRANULE = 256
"""Columns of a tile come in multiples of this, so that products stay aligned."""

LEAST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    """Size of the part of the logits that exists at a time."""

    rows: int
    columns: int
    num_rows: int
    vocabulary: int

    @classmethod
    def of(
        cls, workspace: int, num_rows: int, weight: Tensor, *, copies: int, element: int
    ) -> Tiles:
        """Choose the tile size: a quarter of the workspace for a tile of the weight and its
        gradient, the rest for `copies` of the logits and one copy of the hidden states.

        Raises:
            ValueError: the workspace is too small.
        """
        vocabulary, width = weight.shape
        columns = min(workspace // 4 // (8 * width) // GRANULE * GRANULE, 32 * GRANULE, vocabulary)
        row = copies * element * max(columns, GRANULE) + 8 * width
        rows = workspace * 3 // 4 // row
        if columns == 0 or rows < LEAST_ROWS:
            least = max(4 * 8 * width * GRANULE, LEAST_ROWS * row * 4 // 3 + 1)
            raise ValueError(
                f"workspace={workspace} bytes is too small for rows of width {width}: at least "
                f"{least} are needed"
            )
        return cls(max(1, min(rows, num_rows)), columns, num_rows, vocabulary)

    def chunks(self) -> Iterator[slice]:
        return slices(self.num_rows, self.rows)

    def tiles(self) -> Iterator[slice]:
        return slices(self.vocabulary, self.columns)

    def local(self, labels: Tensor, tile: slice) -> Tensor:
        """Return labels as columns of a tile; -1 if they are in another tile."""
        places: Tensor = labels - tile.start
        return places.where((places >= 0) & (places < tile.stop - tile.start), -1)

    def merged(self, parts: list[dict[str, Tensor]], labels: Tensor) -> dict[str, Tensor]:
        """Combine the statistics of all tiles into those of rows."""
        owned = torch.stack([self.local(labels, tile) >= 0 for tile in self.tiles()])
        sizes = [tile.stop - tile.start for tile in self.tiles()]
        stacked = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        return merge(stacked, owned, torch.tensor(sizes, device=labels.device))


class TiledRun(Run):
    """Evaluation with the torch module."""

    kernel = "torch/linear/tiled"

    def __init__(
        self,
        module: ModuleType,
        rows: Rows,
        step: SimpleNamespace,
        temperature: float,
        *,
        hidden: Tensor,
        weight: Tensor,
        workspace: int,
        mean_logprob: bool,
    ) -> None:
        head = heads.Head(rows, weight.shape[0], None)
        super().__init__(module, rows, step, head, temperature, mean_logprob=mean_logprob)
        self.hidden, self.weight = hidden, weight
        element = torch.finfo(rows.dtype).bits // 8
        self.tiles = Tiles.of(workspace, rows.num_kept, weight, copies=4, element=element)

    def forward(self, needed: tuple[bool, ...]) -> Tensor:
        """Compute the loss and the metrics; gradients are computed in backward."""
        self.needed = needed
        found: dict[str, list[Tensor]] = {name: [] for name in ROW_STATISTICS}
        for rows in self.tiles.chunks():
            parts = [self._softmax(rows, tile)[1] for tile in self.tiles.tiles()]
            for name, value in self.tiles.merged(parts, self._labels(rows)).items():
                found[name].append(value)
        empty = self.rows.labels.new_zeros(0, dtype=self.rows.dtype)
        names = [name for name in found if found[name] or not self.rows.num_kept]
        self.statistics = {name: torch.cat(found[name] or [empty]) for name in names}
        if any(needed):
            self.cotangents = self._gradient(self.statistics, slice(None))
        return self._value()

    def backward(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, multiplied by `grad`."""
        assert self.cotangents is not None
        dtype = self.rows.dtype
        cotangents = {name: value * grad for name, value in self.cotangents.items()}
        d_hidden = torch.zeros_like(self.hidden, dtype=dtype) if self.needed[0] else None
        d_weight = torch.zeros_like(self.weight) if self.needed[1] else None
        for tile in self.tiles.tiles():
            weight = self.weight[tile].to(dtype)
            sums = torch.zeros_like(weight)
            for rows in self.tiles.chunks():
                dz = self._gradient_of(rows, tile, cotangents)
                if d_hidden is not None:
                    d_hidden[self.head.at(rows)] += dz @ weight
                sums.addmm_(dz.t(), self._hidden(rows))
            if d_weight is not None:
                d_weight[tile] = sums.to(d_weight.dtype)
        return d_hidden, d_weight

    def _gradient_of(self, rows: slice, tile: slice, cotangents: dict[str, Tensor]) -> Tensor:
        """Compute the gradient of the logits of a tile."""
        softmax, _ = self._softmax(rows, tile)
        softmax.rebase({name: value[rows] for name, value in self.statistics.items()})
        labels = self.tiles.local(self._labels(rows), tile)
        part = {name: value[rows] for name, value in cotangents.items()}
        return softmax.gradient(labels, part, self.tiles.vocabulary) / self.temperature

    def _hidden(self, rows: slice) -> Tensor:
        """Return hidden states of rows, with invalid rows cleared."""
        hidden = self.hidden[self.head.at(rows)].to(self.rows.dtype)
        return hidden.masked_fill(~self.rows.valid[rows].unsqueeze(1), 0.0)

    def _labels(self, rows: slice) -> Tensor:
        labels = self.rows.labels[rows].long()
        return labels.masked_fill(~self.rows.valid[rows], 0)

    def _softmax(self, rows: slice, tile: slice) -> tuple[heads.Softmax, dict[str, Tensor]]:
        z = self._hidden(rows) @ self.weight[tile].to(self.rows.dtype).t()
        z /= self.temperature
        labels = self.tiles.local(self._labels(rows), tile).clamp(min=0)
        return heads.Softmax.of(z, labels, mean_logprob=self.mean_logprob)
