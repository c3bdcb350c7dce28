"""Compile the kernels of attention for a Hopper GPU, which need not be there; then call them with
shapes of real batches, and fail if one of them is compiled. With the argument `again`, none may be
compiled at all: they are on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from forgedsl_runtime.services.titan.upstream import flash_attention as fa

HEADS, KEY_HEADS, WIDTH, DTYPE = 16, 8, 128, torch.bfloat16
SEQ_LEN, ROWS = 2048, 128
KNOWN = [(32_768, 26, 2048), (32_640, 27, 1024), (32_768, 1, 2048), (32_768, 257, 256),
         (262_144, 300, 2048)]  # fmt: skip
"""tokens, segments and upper bound of their lengths"""


class Compiled(Exception):
    pass


def refuse(*args: object, **options: object) -> None:
    raise Compiled


def call(tokens: int, segments: int, longest: int, *, backward: bool = True) -> None:
    with FakeTensorMode():
        q = torch.empty(tokens, HEADS, WIDTH, dtype=DTYPE, device="cuda")
        k, v = torch.empty(2, tokens, KEY_HEADS, WIDTH, dtype=DTYPE, device="cuda").unbind()
        bounds = torch.empty(segments + 1, dtype=torch.int32, device="cuda")
        scale = WIDTH**-0.5
        out, log_sum = fa._attend(q, k, v, bounds, longest, scale)
        if backward:
            fa._differentiate(out, q, k, v, out, log_sum, bounds, longest, scale)


def main(args: Sequence[str]) -> None:
    theirs = fa.kernels()
    if args:
        theirs.cute.compile = refuse
    begin = time.perf_counter()
    fa.compile_ahead(HEADS, KEY_HEADS, WIDTH, DTYPE, seq_len=SEQ_LEN, rows=ROWS)
    print(f"{time.perf_counter() - begin:.2f} s")
    assert not torch.cuda.is_available() or torch.cuda.memory_allocated() == 0
    theirs.cute.compile = refuse
    for shape in KNOWN:
        call(*shape)
    call(128, 2, 128, backward=False)
    try:  # all samples in one block of keys: the one case that is left to the first call
        call(32_768, 256, 128)
    except Compiled:
        return
    raise AssertionError("short samples have no kernel of their own; `compile_ahead` says they do")


if __name__ == "__main__":
    main(sys.argv[1:])
