"""Rescale a gradient in place by a number on the device; nothing happens where it is one.

Autograd gives the weight of the loss in the backward pass as a tensor. Reading it would wait for
the device, multiplying by it costs a pass over the gradient; a kernel that looks first costs
neither.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forgedsl.runtime.losses.kernels import num_processors, overlapped, overlaps

BLOCK, WARPS = 16384, 16
"""One program a multiprocessor, so that few look; each has 32 KB of bfloat16 under way at once."""


def rescale(gradient: Tensor, weight: Tensor) -> None:
    """`gradient *= weight`, without waiting and without a pass if the weight is one."""
    count = gradient.numel()
    if count:
        programs = min(num_processors(gradient.device), -(-count // BLOCK))
        assert gradient.is_contiguous()
        overlap = overlaps(gradient.device)
        _rescale[(programs,)](
            gradient, weight, count, BLOCK=BLOCK, OVERLAP=overlap, num_warps=WARPS,
            **overlapped(overlap),
        )  # fmt: skip


@triton.jit
def _rescale(gradient, weight, count, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        gdc_wait()  # the kernel before may still run: until here no memory is touched
        gdc_launch_dependents()
    factor = tl.load(weight)
    if factor != 1.0:
        start = tl.program_id(0).to(tl.int64) * BLOCK
        for first in range(start, count, tl.num_programs(0).to(tl.int64) * BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(gradient + at, mask=at < count, other=0.0)
            tl.store(gradient + at, (value * factor).to(value.dtype), mask=at < count)
