"""Multiply by numbers on the device, without waiting for them.

    rescale        a gradient in place by one number; if that is 1, the kernel does nothing, or is
                   not even launched (`ones`)
    scaled_rows    each row of a matrix by a number of its own, rows that do not count by zero

Autograd passes the upstream gradient of the loss as a tensor on the device; usually it is one. If
the host read it, it would wait for the device. Always multiplying by it would cost a pass over the
gradient. So the kernel itself checks if it is one, and then returns at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forgedsl_runtime.losses.kernels import can_overlap, num_processors, overlap_option
from forgedsl_runtime.losses.ones import is_one

BLOCK, WARPS = 16384, 16
"""Elements that a program handles per iteration (32 KB of bfloat16), and its warps. There is at
most one program per multiprocessor, because each must load the factor first."""


def rescale(gradient: Tensor, weight: Tensor) -> None:
    """Compute `gradient *= weight` without waiting, and without a pass if the weight is one."""
    count = gradient.numel()
    if count and not is_one(weight):
        programs = min(num_processors(gradient.device), -(-count // BLOCK))
        assert gradient.is_contiguous()
        overlap = can_overlap(gradient.device)
        _rescale[(programs,)](
            gradient, weight, count, BLOCK=BLOCK, OVERLAP=overlap, num_warps=WARPS,
            **overlap_option(overlap),
        )  # fmt: skip


def scaled_rows(
    rows: Tensor,
    *,
    factor: Tensor | None = None,
    valid: Tensor | None = None,
    inplace: bool = False,
) -> Tensor:
    """Return `rows [N, H]` times `factor [N, 1]`, zero where not `valid [N]`, even for NaN."""
    count, width = rows.shape
    if rows.stride(1) != 1:
        assert not inplace
        rows = rows.contiguous()
    out = rows if inplace else torch.empty_like(rows, memory_format=torch.contiguous_format)
    if count:
        _scaled_rows[(count,)](
            out, rows, factor, valid, width, out.stride(0), rows.stride(0),
            BLOCK=min(4096, triton.next_power_of_2(width)),
        )  # fmt: skip
    return out


@triton.jit
def _scaled_rows(out, rows, factor, valid, width, out_stride, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    counts = True
    if valid is not None:
        counts = tl.load(valid + row).to(tl.int1)
    scale = 1.0
    if factor is not None:
        scale = tl.load(factor + row)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(rows + row * stride + at, mask=(at < width) & counts, other=0.0)
        tl.store(out + row * out_stride + at, (value * scale).to(value.dtype), mask=at < width)


@triton.jit
def _rescale(gradient, weight, count, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()  # the preceding kernel may still run: touch no memory before this line
        gdc_launch_dependents()
    factor = tl.load(weight)
    if factor != 1.0:
        start = tl.program_id(0).to(tl.int64) * BLOCK
        for first in range(start, count, tl.num_programs(0).to(tl.int64) * BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(gradient + at, mask=at < count, other=0.0)
            tl.store(gradient + at, (value * factor).to(value.dtype), mask=at < count)
