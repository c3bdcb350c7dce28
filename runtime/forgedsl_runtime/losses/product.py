"""`hidden @ weight.T` without its logits: launching the kernels of `product_kernels`.

    Product.statistics(rows)        sums of the softmax -> the statistics of these rows
    Product.weights(rows, out)      the same, and 2 ** (z - reference) in `out`
    Product.differentiate(...)      the gradients of the statistics -> factors of the rows
    Product.gradient(rows, columns, hidden, out)   d loss / d logits of a part of the vocabulary

Each call handles a range of rows. `arguments` are the tensors of an Evaluation by their names in
the kernels. Among them are the statistics, which the kernels write, and the gradients of the loss
with respect to the statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import ROW_STATISTICS, Rows
from forgedsl_runtime.losses.kernels import num_processors

ALIGNMENT = 16
"""bytes that the copy engine fetches at a time"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Sizes of the product's tiles: `rows` x `columns` logits, summed over `depth` hidden
    dimensions at a time. Tiles of `group` consecutive tile rows run together."""

    rows: int = 128
    columns: int = 256
    depth: int = 64
    group: int = 32
    num_warps: int = 8
    num_stages: int = 4


BLOCKS = {"cuda": Blocks(), "cpu": Blocks(16, 32, 16, 2, 1, 1)}
FEW = {"ROWS": 16, "PARTS": 128}
"""launch settings of the kernels `gather` and `rebase`: rows per program, and partial sums that it
reads per iteration"""


def fits_on_chip(hidden: Tensor, weight: Tensor) -> bool:
    """True if the product can be computed on chip: on Hopper in bfloat16 (in the interpreter in any
    dtype), if the copy engine can fetch rows."""
    for part in (hidden, weight):
        # The width must be aligned too, because copies have no gaps between rows.
        size = part.element_size()
        begins = (part.stride(0) * size, part.shape[1] * size, part.data_ptr())
        if part.stride(1) != 1 or any(place % ALIGNMENT for place in begins):
            return False
    if not hidden.is_cuda:
        return True
    hopper = torch.cuda.get_device_capability(hidden.device)[0] == 9
    return hopper and hidden.dtype == weight.dtype == torch.bfloat16


class Product:
    """Launches the product kernels for the rows of a loss, and holds their sums between
    launches."""

    def __init__(
        self,
        rows: Rows,
        arguments: dict[str, Any],
        hidden: Tensor,
        weight: Tensor,
        *,
        chunk: int,
        statistics: Sequence[str],
        gradients: Sequence[str] = (),
    ) -> None:
        from forgedsl_runtime.losses import product_kernels

        self.rows, self.arguments, self.hidden, self.weight = rows, arguments, hidden, weight
        self.module: Any = product_kernels
        self.device = hidden.device
        self.blocks = BLOCKS[self.device.type]
        self.vocabulary = weight.shape[0]
        self.mean = "mean_logprob" in statistics
        self.names = tuple(gradients)
        self.tilted, self.level = "entropy" in gradients, "mean_logprob" in gradients
        self.parts = -(-self.vocabulary // self.blocks.columns)
        count = rows.num_kept
        more: dict[str, Any] = {"dtype": rows.dtype, "device": self.device}
        size = (3 if self.mean else 2) * self.parts * min(chunk, count)
        self.sums = torch.empty(size, **more)
        self.kept = torch.empty((6, -(-count // 16) * 16), **more)
        self.far = torch.zeros((), dtype=torch.int32, device=self.device)
        self.far_rows = torch.empty(count, dtype=torch.bool, device=self.device)
        self.latest: tuple[slice | None, dict[str, Any]] = (None, {})

    def release(self) -> None:
        """Free the memory of the sums, once all statistics are computed."""
        self.sums, self.latest = self.far, (None, {})

    def statistics(self, rows: slice) -> None:
        """Compute the statistics of these rows, without storing logits."""
        self._measure(rows, "sums", None)

    def weights(self, rows: slice, out: Tensor) -> None:
        """Compute the statistics of these rows, and write their probabilities times a factor to
        `out`."""
        self._measure(rows, "weights", out)

    def gradient(self, rows: slice, columns: slice, hidden: Tensor, out: Tensor) -> None:
        """Compute d loss / d logits for these columns, after `differentiate(rows, "gradient")`.
        `hidden` holds the states of these rows and must be zero for invalid rows."""
        self._product(rows, "gradient", out, hidden=hidden, columns=columns)
        self._at_labels(rows, columns, out)

    def differentiate(self, rows: slice, form: str) -> None:
        """Compute the row factors of `form` from the gradients of the statistics of these rows."""
        has = {name.upper(): name in self.names for name in ("logprob", "entropy", "logsumexp")}
        grid, block = self._grid(rows, 128)
        self._launch("factors", grid, rows, FORM=form, BLOCK=block, MEAN=self.level, **has)

    def apply(self, rows: slice, out: Tensor) -> None:
        """Turn the weights in `out` into gradients, in place. If `plain`, a factor per row is still
        missing."""
        every = slice(0, self.vocabulary)
        if not self.plain:
            block, num_warps = (8192, 8) if out.is_cuda else (32, 1)
            grid = (rows.stop - rows.start) * -(-self.vocabulary // block)
            self._launch(
                "apply_weights", grid, rows, out=out, out_stride=out.stride(0), V=self.vocabulary,
                BLOCK=block, TILTED=self.tilted, LEVEL=self.level, num_warps=num_warps,
            )  # fmt: skip
        self._at_labels(rows, every, out)

    @property
    def plain(self) -> bool:
        """True if weights times a factor of the row are the gradient, except at the label."""
        return self.names == ("logprob",)

    @property
    def form(self) -> str:
        return "factor" if self.plain else "weights"

    def factor(self, rows: slice) -> Tensor:
        """Return the factor of the weights of each row, `[rows, 1]`."""
        factor: Tensor = self.kept[2, rows].unsqueeze(1)
        return factor

    def _measure(self, rows: slice, mode: str, out: Tensor | None) -> None:
        """Compute the softmax sums of the rows, relative to the logit of the label. They overflow
        in rows whose label is far below the largest logit; these are computed again, relative to
        the largest logit."""
        count, width = rows.stop - rows.start, self.weight.shape[1]
        hidden = self.hidden[rows]
        grid = min(count, 16 * num_processors(self.device))
        self._launch(
            "label_logits", grid, rows, hidden=hidden, weight=self.weight, V=self.vocabulary,
            H=width, hidden_stride=hidden.stride(0), weight_stride=self.weight.stride(0),
            BLOCK=min(2048, 1 << (width - 1).bit_length()),
        )  # fmt: skip
        self._product(rows, mode, out)
        self._gather(rows, again=False)
        self._product(rows, "largest", None, again=True)
        grid = -(-count // FEW["ROWS"])
        self._launch("rebase", grid, rows, num_parts=self.parts, **FEW)
        self._product(rows, mode, out, again=True)
        self._gather(rows, again=True)

    def _gather(self, rows: slice, *, again: bool) -> None:
        grid = -(-(rows.stop - rows.start) // FEW["ROWS"])
        self._launch(
            "gather", grid, rows, num_parts=self.parts, V=self.vocabulary, MEAN=self.mean,
            AGAIN=again, **FEW,
        )  # fmt: skip

    def _product(
        self,
        rows: slice,
        mode: str,
        out: Tensor | None,
        *,
        hidden: Tensor | None = None,
        columns: slice | None = None,
        again: bool = False,
    ) -> None:
        blocks = self.blocks
        hidden = self.hidden[rows] if hidden is None else hidden
        weight = self.weight if columns is None else self.weight[columns]
        left = self._tiles(hidden, blocks.rows, blocks.depth)
        right = self._tiles(weight, blocks.columns, blocks.depth)
        result = left if out is None else self._tiles(out, blocks.rows, blocks.columns // 2)
        count, width = weight.shape
        tiles = -(-hidden.shape[0] // blocks.rows) * -(-count // blocks.columns)
        self._launch(
            "product", min(tiles, num_processors(self.device)), rows,
            hidden=left, weight=right, out=result, num_columns=count, H=width,
            ROWS=blocks.rows, COLUMNS=blocks.columns, DEPTH=blocks.depth, GROUP=blocks.group,
            TAIL=count % blocks.columns != 0, MODE=mode, AGAIN=again, MEAN=self.mean and not again,
            TILTED=self.tilted, LEVEL=self.level,
            num_warps=blocks.num_warps, num_stages=blocks.num_stages,
        )  # fmt: skip

    def _tiles(self, matrix: Tensor, rows: int, columns: int) -> Any:
        """Return a matrix as a descriptor for the copy engine."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(matrix, [*matrix.shape], [*matrix.stride()], [rows, columns])

    def _at_labels(self, rows: slice, columns: slice, out: Tensor) -> None:
        grid, block = self._grid(rows, 128)
        self._launch(
            "at_labels", grid, rows, out=out, out_stride=out.stride(0), BLOCK=block,
            first_column=columns.start, num_columns=columns.stop - columns.start,
        )  # fmt: skip

    @staticmethod
    def _grid(rows: slice, block: int) -> tuple[int, int]:
        return -(-(rows.stop - rows.start) // block), block

    def _launch(self, name: str, grid: int, rows: slice, **more: Any) -> None:
        """Launch a kernel for these rows, with its arguments by name."""
        if rows.stop == rows.start:
            return
        kernel = getattr(self.module, name)
        options = {key: more.pop(key) for key in ("num_warps", "num_stages") if key in more}
        known = self._shared_arguments(rows) | more
        kernel[(grid,)](**{key: known[key] for key in kernel.arg_names}, **options)

    def _shared_arguments(self, rows: slice) -> dict[str, Any]:
        """Return kernel arguments that all launches for these rows share."""
        if self.latest[0] == rows:
            return self.latest[1]
        label_logit, reference, slope, bend, floor, at_label = self.kept[:, rows].unbind()
        known = {
            "labels": self.rows.labels[rows], "valid": self.rows.valid[rows],
            "scale": self.arguments["scale"], "ACC": self.arguments["ACC"],
            "sums": self.sums, "far": self.far, "far_rows": self.far_rows[rows],
            "label_logit": label_logit, "reference": reference, "slope_ptr": slope,
            "bend_ptr": bend, "floor_ptr": floor, "at_label_ptr": at_label,
            "num_rows": rows.stop - rows.start,
        }  # fmt: skip
        for given in (f"{k}{s}_ptr" for k in ("", "d_") for s in ROW_STATISTICS):
            value = self.arguments.get(given)
            known[given] = reference if value is None else value[rows]
        self.latest = rows, known
        return known
