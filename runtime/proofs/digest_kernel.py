"""Triton kernel of digests: reads each element once, widens it on chip.

    bits [rows, columns] --tiles--> sum of row[r] * column[c] * bits[r, c] --atomic add--> sum

The sum of a tile is added to the result by an atomic add of 64-bit integers. These sums are modulo
2^64, so they are equal in any order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""largest number of elements of a tile, which are on chip at once"""
ACROSS = 1024
"""largest number of columns of a tile"""
SPAN = 1 << 16
"""most elements that a program reads; it is a multiple of TILE"""


def digest_on_gpu(bits: Tensor, by_row: Tensor, by_column: Tensor) -> Tensor:
    """Return the sum over all elements of by_row[r] * by_column[c] * bits[r, c] modulo 2^64, int64
    [].

    bits: [rows, columns], int8 to int64; elements of a row are adjacent. by_row: int64 [rows],
    by_column: int64 [columns].
    """
    rows, columns = bits.shape
    found = torch.zeros((), dtype=torch.int64, device=bits.device)
    if not bits.numel():
        return found
    width = min(ACROSS, triton.next_power_of_2(columns))
    height = min(TILE // width, triton.next_power_of_2(rows))
    span = min(SPAN // height, width * triton.cdiv(columns, width))
    grid = (triton.cdiv(rows, height), triton.cdiv(columns, span))
    add_digest[grid](
        bits, by_row, by_column, found, rows, columns, bits.stride(0), span,
        HEIGHT=height, WIDTH=width, num_warps=8,
    )  # fmt: skip
    return found


@triton.jit
def add_digest(
    bits_ptr, row_ptr, column_ptr, found_ptr, rows, columns, stride, span,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the digest of HEIGHT rows and `span` columns to `found`."""
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    first = tl.program_id(1).to(tl.int64) * span
    by_row = tl.zeros([HEIGHT], tl.int64)
    for start in range(0, span, WIDTH):
        column = first + start + tl.arange(0, WIDTH)
        exists = (row < rows)[:, None] & (column < columns)[None, :]
        bits = tl.load(bits_ptr + row[:, None] * stride + column[None, :], exists, 0)
        factor = tl.load(column_ptr + column, column < columns, 0)
        by_row += tl.sum(bits.to(tl.int64) * factor[None, :], 1)
    total = tl.sum(by_row * tl.load(row_ptr + row, row < rows, 0))
    tl.atomic_add(found_ptr, total, sem="relaxed")
