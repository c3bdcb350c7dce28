"""Fused linear losses whose logits never leave the chip.

Here the *weights* of a row (plural) are its softmax, times a factor of the row. Each is
2 ** (logit - reference), with logits in units of log 2, stored in bfloat16. `weight` (singular) is
the lm_head.

    token-local    for each chunk of rows: one product writes the weights of the rows and their
                   statistics; the gradients of the statistics follow; two products with the
                   weights are the gradients of hidden and of the lm_head
    coupled        the same for a chunk of whole sequences; if a sequence does not fit in a chunk,
                   first the statistics of all rows, then for each chunk the product again, for
                   the gradients
    workspace      statistics of all rows; then, for each tile of rows and vocabulary, the
                   gradient of the logits: its product with the lm_head is added to the gradient of
                   hidden, its product with hidden to that of a slice of the lm_head

If a loss depends only on log-probs, the gradient of the logits is the weights times another factor
of the row, except at the label. For the gradient of the lm_head this factor is applied to the
hidden states, for the gradient of hidden to the result of the product. So no pass over the logits
is needed. Losses with an entropy or a mean log-prob need a pass that changes the weights in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import slices
from forgedsl_runtime.losses.fused import Evaluation
from forgedsl_runtime.losses.kernels import num_processors
from forgedsl_runtime.losses.linear import LinearEvaluation, add_product
from forgedsl_runtime.losses.product import BLOCKS, Product
from forgedsl_runtime.losses.rescale import scaled_rows
from forgedsl_runtime.losses.tiled import GRANULE

MULTIPLE = 8
LEAST_ROWS, MOST_ROWS = 128, 1 << 16


class OnChipEvaluation(LinearEvaluation):
    """Chunks of rows: three products, or four if sequences span chunks."""

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        self._start(needed)
        self.product = product_of(self, self.hidden, self.weight, self.chunk)
        self.kernel = "triton/linear/onchip"
        if not any(needed):
            self._measure()
        elif self.kernels.local:
            self.prepare()
            for rows in self._chunks():
                self._weights(rows)
            self.finish()
        elif (whole := self._whole_sequences()) is not None:
            self.chunk = whole
            for rows in self._chunks():
                self._weights(rows)
        else:
            self.kernel += "/twice"
            self._measure()
            for rows in self._chunks():
                out = self.buffer[: rows.stop - rows.start]
                self.product.differentiate(rows, "gradient")
                self.product.gradient(rows, slice(0, self.vocabulary), self.hidden[rows], out)
                self._push(out, rows)
        self._end(needed)

    def _workspace(self, needed: tuple[bool, ...]) -> Tensor:
        count = min(self.chunk, self.rows.num_kept) if any(needed) else 0
        dtype = torch.promote_types(self.hidden.dtype, self.weight.dtype)
        return matrix_view(self.hidden.new_empty(count * row_stride(self.vocabulary), dtype=dtype),
                    count, self.vocabulary)  # fmt: skip

    def _measure(self) -> None:
        """Compute the statistics of all rows, then the loss."""
        for rows in self._chunks():
            self.product.statistics(rows)
        self.finish()

    def _weights(self, rows: slice) -> None:
        """Compute the weights of these rows with one product, then their gradients with two."""
        out = self.buffer[: rows.stop - rows.start]
        self.product.weights(rows, out)
        self._gradients(rows, out)

    def _gradients(self, rows: slice, out: Tensor) -> None:
        """Compute gradients of hidden and lm_head from the weights of these rows."""
        if self.kernels.local:
            self.decide(rows)
        else:
            self.finish()
        self.product.differentiate(rows, self.product.form)
        self.product.apply(rows, out)
        self._push(out, rows, self.product.factor(rows) if self.product.plain else None)


class OnChipTiledEvaluation(Evaluation):
    """Evaluation within a workspace: four products, and a tile of gradients at a time."""

    def __init__(self, *args: Any, hidden: Tensor, weight: Tensor, workspace: int) -> None:
        super().__init__(*args, vocabulary=weight.shape[0])
        index = self.rows.index
        self.num_source = hidden.shape[0]
        self.hidden = hidden if index is None else hidden[index]
        self.weight = weight
        self.tile = Tile.of(workspace, self.hidden, weight)
        parts = -(-weight.shape[0] // BLOCKS[self.device.type].columns)
        self.measured = min(max(LEAST_ROWS, workspace // (12 * parts)), MOST_ROWS)

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        self.kernel = "triton/linear/onchip/tiled"
        every = slice(0, self.rows.num_kept)
        product = product_of(self, self.hidden, self.weight, self.measured)
        for rows in slices(self.rows.num_kept, self.measured):
            product.statistics(rows)
        if self.kernels.local and any(needed):
            self.prepare()
            self.decide(every)
        self.finish()
        if not any(needed):
            return
        if self.rows.num_kept == 0:
            shape = self.num_source, self.hidden.shape[1]
            self.gradients = (
                self.hidden.new_zeros(shape) if needed[0] else None,
                torch.zeros_like(self.weight) if needed[1] else None,
            )
            return
        product.release()
        product.differentiate(every, "gradient")
        self._differentiate(product, needed)

    def _differentiate(self, product: Product, needed: tuple[bool, ...]) -> None:
        """Compute the gradient of hidden, summed over tiles, and that of weight, tile by tile."""
        count, tile = self.rows.num_kept, self.tile
        d_hidden = torch.empty_like(self.hidden, dtype=self.rows.dtype) if needed[0] else None
        d_weight = torch.empty_like(self.weight) if needed[1] else None
        chunks = list(slices(count, tile.rows))
        dtype = torch.promote_types(self.hidden.dtype, self.weight.dtype)
        memory = self.hidden.new_empty(
            min(count, tile.rows) * row_stride(tile.columns), dtype=dtype
        )
        clean = self._clean(chunks[0]) if len(chunks) == 1 else None
        for columns in slices(self.weight.shape[0], tile.columns):
            weight, parts = self.weight[columns], None
            if d_weight is not None and clean is None:  # sum over chunks in full precision
                parts = torch.empty_like(weight, dtype=self.rows.dtype)
            elif d_weight is not None:
                parts = d_weight[columns]
            for rows in chunks:
                hidden = self._clean(rows) if clean is None else clean
                out = matrix_view(memory, rows.stop - rows.start, columns.stop - columns.start)
                product.gradient(rows, columns, hidden, out)
                if d_hidden is not None:
                    add_product(d_hidden[rows], out, weight, new=columns.start == 0)
                if parts is not None:
                    add_product(parts, out.t(), hidden, new=rows.start == 0)
            if d_weight is not None and parts is not None and clean is None:
                d_weight[columns] = parts.to(d_weight.dtype)
        if d_hidden is not None and self.rows.index is not None:
            whole = d_hidden.new_zeros((self.num_source, d_hidden.shape[1]))
            d_hidden = whole.index_copy_(0, self.rows.index, d_hidden)
        self.gradients = (d_hidden, d_weight)

    def _clean(self, rows: slice) -> Tensor:
        """Return hidden states of rows, with zeros for invalid rows: 0 times NaN is NaN."""
        return scaled_rows(self.hidden[rows], valid=self.rows.valid[rows])


def product_of(run: Evaluation, hidden: Tensor, weight: Tensor, chunk: int) -> Product:
    """Make the product of a run. Allocate memory for the gradients of the statistics. (Fused
    kernels need none: they keep these on chip.)"""
    names = run.kernels.module.GRADIENTS
    for name in names:
        empty = torch.empty(run.rows.num_kept, dtype=run.rows.dtype, device=run.device)
        run.arguments.setdefault(f"d_{name}_ptr", empty)
    return Product(
        run.rows, run.arguments, hidden, weight, chunk=chunk,
        statistics=run.kernels.module.STATISTICS, gradients=names,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """Size of the part of the logits gradient that exists at a time."""

    rows: int
    columns: int

    @classmethod
    def of(cls, workspace: int, hidden: Tensor, weight: Tensor) -> Tile:
        """Choose the tile size. At most 1/4 of the workspace is for hidden states, and at most 1/4
        for sums. The gradient of the logits gets the rest, except for 1/16 that stays free.

        Raises:
            ValueError: the workspace is too small.
        """
        count, width = max(1, hidden.shape[0]), hidden.shape[1]
        quarter, element = workspace // 4, max(hidden.element_size(), weight.element_size())
        most = workspace * 7 // 16 // (GRANULE * element)  # leave room for columns
        rows = min(count, quarter // (width * element), most)
        if rows < count:
            rows = rows // LEAST_ROWS * LEAST_ROWS
        left = workspace * 15 // 16 - 2 * rows * width * element
        columns = left // (max(rows, 1) * element)
        if rows < count:  # parts of the gradient of weight, in full precision
            columns = min(columns, quarter // (2 * element * width))
        if rows == 0 or columns < GRANULE:
            least = max(8 * element * width * GRANULE, 8 * LEAST_ROWS * element * width,
                        element * LEAST_ROWS * GRANULE * 16 // 7 + 1)  # fmt: skip
            raise ValueError(
                f"workspace={workspace} bytes is too small for rows of width {width}: at least "
                f"{least} are needed"
            )
        columns = min(columns, row_stride(weight.shape[0]))
        return cls(rows, balanced_columns(rows, columns, num_processors(hidden.device)))


def balanced_columns(rows: int, columns: int, processors: int) -> int:
    """Return at most `columns` columns, so that the tiles of the product keep all processors
    busy."""
    blocks = BLOCKS["cuda"]
    high, most = -(-rows // blocks.rows), columns // blocks.columns
    choices = range(max(1, most // 2), most + 1)

    def busy(wide: int) -> float:
        return high * wide / (-(-high * wide // processors) * processors)

    return max(choices, key=lambda wide: (busy(wide), wide)) * blocks.columns if most else columns


def row_stride(columns: int) -> int:
    """Return the row stride of a matrix such that the copy engine can store each row."""
    return -(-columns // MULTIPLE) * MULTIPLE


def matrix_view(memory: Tensor, rows: int, columns: int) -> Tensor:
    """Return a matrix view of `memory`. On a CPU the padding between rows is zeroed: with AMX,
    bfloat16 products read it and multiply by zero, and 0 times NaN is NaN."""
    width = row_stride(columns)
    whole = memory[: rows * width].view(rows, width)
    if not memory.is_cuda:
        whole[:, columns:] = 0.0
    return whole[:, :columns]
