"""Linear losses within a workspace with the generated kernels, in the order given in `tiled`.

Kernels treat a tile like a shard of the vocabulary: labels of other tiles are -1.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.fused import Evaluation
from forgedsl_runtime.losses.linear import add_product
from forgedsl_runtime.losses.tiled import Tiles


class TiledEvaluation(Evaluation):
    """Logits are `hidden @ weight.T`, a tile at a time."""

    def __init__(
        self,
        *args: Any,
        hidden: Tensor,
        weight: Tensor,
        workspace: int,
        logits_dtype: torch.dtype | None,
        module: ModuleType,
    ) -> None:
        kernels, rows, *more = args
        rows = rows.with_labels(rows.labels)  # each tile has labels of its own
        super().__init__(kernels, rows, *more, vocabulary=weight.shape[0])
        self.hidden, self.weight, self.module, self.step = hidden, weight, module, args[2]
        self.mixed = hidden.is_cuda and hidden.dtype == weight.dtype != self.rows.dtype
        dtype = logits_dtype or self.rows.dtype
        count = self.rows.num_kept
        element = dtype.itemsize
        self.tiles = Tiles.of(workspace, count, weight, copies=1, element=element)
        size = self.tiles.rows * self.tiles.columns if count else 0
        self.buffer = torch.empty(size, dtype=dtype, device=self.device)

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        self.kernel = "triton/linear/tiled"
        for rows in self.tiles.chunks():
            self._whole(rows)
        if self.kernels.local and any(needed):
            self._decide()
        self.finish()
        if any(needed):
            self._differentiate(needed)
        del self.buffer

    def _whole(self, rows: slice) -> None:
        """Combine the statistics of all tiles into those of rows."""
        names, parts = self.kernels.module.STATISTICS, []
        for tile in self.tiles.tiles():
            self._over_tile("statistics", self._logits(rows, tile), None, rows, tile)
            found = self.statistics[:, rows].clone()
            parts.append(dict(zip(names, found, strict=True)))
        merged = self.tiles.merged(parts, self.rows.labels[rows])
        for name, place in zip(names, self.statistics[:, rows], strict=True):
            place.copy_(merged[name])

    def _decide(self) -> None:
        """Compute the gradients of the statistics, for a token-local loss."""
        found = dict(zip(self.kernels.module.STATISTICS, self.statistics, strict=True))
        sums = self.module.prepare(self.rows.namespace(self.step, {}))
        gradient = self.module.gradient(self.rows.namespace(self.step, found), sums)
        for name in self.kernels.module.GRADIENTS:
            self.arguments[f"d_{name}_ptr"] = gradient[name].contiguous()

    def _differentiate(self, needed: tuple[bool, ...]) -> None:
        """Compute the gradient of hidden, summed over tiles, and that of weight, tile by tile."""
        d_hidden = torch.zeros_like(self.hidden, dtype=self.rows.dtype) if needed[0] else None
        d_weight = torch.empty_like(self.weight) if needed[1] else None
        for tile in self.tiles.tiles():
            sums = torch.zeros_like(self.weight[tile], dtype=self.rows.dtype)
            for rows in self.tiles.chunks():
                logits = self._logits(rows, tile)
                gradient = self._gradient(logits)
                self._over_tile("apply", logits, gradient, rows, tile)
                if d_hidden is not None:
                    self._add_hidden(d_hidden, gradient, rows, tile)
                if d_weight is not None:
                    add_product(sums, gradient.t(), self._hidden(rows))
            if d_weight is not None:
                d_weight[tile] = sums.to(d_weight.dtype)
        self.gradients = (d_hidden, d_weight)

    def _add_hidden(self, d_hidden: Tensor, gradient: Tensor, rows: slice, tile: slice) -> None:
        if self.rows.index is None:
            add_product(d_hidden[rows], gradient, self.weight[tile])
        else:
            part = torch.zeros_like(d_hidden[: gradient.shape[0]])
            add_product(part, gradient, self.weight[tile])
            d_hidden.index_add_(0, self.rows.index[rows], part)

    def _over_tile(
        self, name: str, logits: Tensor, gradient: Tensor | None, rows: slice, tile: slice
    ) -> None:
        self.vocabulary = self.arguments["V"] = tile.stop - tile.start
        self.arguments["labels"] = self.tiles.local(self.rows.labels, tile)
        self.launch_over_rows(name, logits, gradient, rows)

    def _hidden(self, rows: slice) -> Tensor:
        """Return hidden states of rows, with invalid rows cleared."""
        index = self.rows.index
        hidden = self.hidden[rows if index is None else index[rows]]
        return hidden.masked_fill(~self.rows.valid[rows].unsqueeze(1), 0.0)

    def _logits(self, rows: slice, tile: slice) -> Tensor:
        height, width = rows.stop - rows.start, tile.stop - tile.start
        out = self.buffer[: height * width].view(height, width)
        hidden, weight = self._hidden(rows), self.weight[tile].t()
        if self.mixed and out.dtype != hidden.dtype:
            return torch.mm(hidden, weight, out_dtype=out.dtype, out=out)
        return torch.mm(hidden.to(out.dtype), weight.to(out.dtype), out=out)

    def _gradient(self, logits: Tensor) -> Tensor:
        """Return the memory of the logits as the gradient's buffer, in the dtype of the
        products."""
        if not self.mixed or logits.dtype == self.weight.dtype:
            return logits
        return logits.view(self.weight.dtype)[:, : logits.shape[1]]
