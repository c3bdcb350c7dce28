"""Triton kernel of digests: one launch for many tensors, which reads each element once.

    bits [rows, columns] --tiles--> sum of row[r] * column[c] * bits[r, c] --atomic add--> found[i]

A table has one line for each tensor: where it lies, its shape, where its factors lie. Programs take
the tiles of a tensor by turns, widen them on chip, and add their sums to the result by an atomic
add. Sums are modulo 2^64, so they are equal in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

HEIGHT, WIDTH = 4, 1024
"""rows and columns of a tile"""
PROGRAMS = 128
"""largest number of programs for one tensor"""
ELEMENTS = {torch.int8: tl.int8, torch.int16: tl.int16, torch.int32: tl.int32,
            torch.int64: tl.int64}  # fmt: skip


class Matrix(NamedTuple):
    """A tensor as [rows, columns] of signed integers, whose rows are contiguous, and its
    factors."""

    bits: Tensor
    by_row: Tensor
    """int64 [rows]"""
    by_column: Tensor
    """int64 [columns]"""


def digest_matrices(matrices: Sequence[Matrix]) -> Tensor:
    """Return the sums over all elements of by_row[r] * by_column[c] * bits[r, c] modulo 2^64, int64
    [matrices]. All tensors are on one device."""
    device = matrices[0].bits.device
    found = torch.zeros(len(matrices), dtype=torch.int64, device=device)
    for dtype in {each.bits.dtype for each in matrices}:
        lines, tiles = [], 1
        for index, (bits, by_row, by_column) in enumerate(matrices):
            if bits.dtype == dtype and bits.numel():
                rows, columns = bits.shape
                tiles = max(tiles, -(-rows // HEIGHT) * -(-columns // WIDTH))
                lines.append((
                    bits.data_ptr(), rows, columns, bits.stride(0), by_row.data_ptr(),
                    by_column.data_ptr(), index,
                ))  # fmt: skip
        if lines:
            table = torch.tensor(lines, dtype=torch.int64, device=device)
            grid = (len(lines), min(PROGRAMS, tiles))
            add_digests[grid](
                table, found, COLUMNS=table.shape[1], ELEMENT=ELEMENTS[dtype],
                HEIGHT=HEIGHT, WIDTH=WIDTH, num_warps=8,
            )  # fmt: skip
    return found


@triton.jit
def add_digests(
    table_ptr, found_ptr,
    COLUMNS: tl.constexpr, ELEMENT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the digest of this program's tiles of a tensor to its place in `found`."""
    line = table_ptr + tl.program_id(0) * COLUMNS
    bits_ptr = tl.load(line).to(tl.pointer_type(ELEMENT))
    rows = tl.load(line + 1)
    columns = tl.load(line + 2)
    stride = tl.load(line + 3)
    row_ptr = tl.load(line + 4).to(tl.pointer_type(tl.int64))
    column_ptr = tl.load(line + 5).to(tl.pointer_type(tl.int64))
    across = tl.cdiv(columns, WIDTH)
    total = tl.zeros([HEIGHT], tl.int64)
    for tile in range(tl.program_id(1), tl.cdiv(rows, HEIGHT) * across, tl.num_programs(1)):
        row = tile // across * HEIGHT + tl.arange(0, HEIGHT).to(tl.int64)
        column = tile % across * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
        exists = (row < rows)[:, None] & (column < columns)[None, :]
        bits = tl.load(bits_ptr + row[:, None] * stride + column[None, :], exists, 0)
        by_column = tl.load(column_ptr + column, column < columns, 0)
        sums = tl.sum(bits.to(tl.int64) * by_column[None, :], 1)
        total += sums * tl.load(row_ptr + row, row < rows, 0)
    tl.atomic_add(found_ptr + tl.load(line + 6), tl.sum(total), sem="relaxed")
