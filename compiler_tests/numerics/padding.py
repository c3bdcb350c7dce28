"""What stands between the rows of the operands of products, and memory that nobody has written.

On a CPU with AMX, oneDNN's product of bfloat16 reads a left operand to the end of the stride of its
rows (seen in torch 2.13): it multiplies with zeros what it reads there, and 0 times NaN is NaN. The
same call is right on other CPUs, so the result says nothing. `FinitePadding` looks at the operands
instead, on any CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {
    "mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "addmv", "addmv_", "linear",
    "_grouped_mm", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip
NARROW = (torch.bfloat16, torch.float16)


class FinitePadding(TorchDispatchMode):
    """Fails at a product of narrow numbers on a CPU between whose rows something stands that is no
    finite number. `products` counts those of narrow numbers, `padded` those with such room."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.padded = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        operands = [value for value in args if isinstance(value, Tensor) and _narrow(value)]
        if name in PRODUCTS and operands:
            self.products += 1
            gaps = [gap for value in operands for gap in between_rows(value)]
            self.padded += any(gap.numel() for gap in gaps)
            if not all(bool(gap.isfinite().all()) for gap in gaps):
                raise AssertionError(f"{name} may read what nobody wrote, between the rows of "
                                     f"{[(*v.shape, v.stride()) for v in operands]}")  # fmt: skip
        return func(*args, **(kwargs or {}))


def _narrow(value: Tensor) -> bool:
    return value.device.type == "cpu" and value.dtype in NARROW and value.dim() >= 2


def between_rows(matrix: Tensor) -> Iterator[Tensor]:
    """What stands between a row of a matrix and the next; rows may be its columns in memory."""
    if matrix.dim() > 2:
        for part in matrix:
            yield from between_rows(part)
        return
    if matrix.stride(1) != 1:
        matrix = matrix.t()
    (rows, width), (stride, step) = matrix.shape, matrix.stride()
    if rows and step == 1 and stride > width:
        memory = torch.empty(0, dtype=matrix.dtype).set_(matrix.untyped_storage())
        for row in range(rows):
            begin = matrix.storage_offset() + row * stride
            yield memory[begin + width : begin + stride]


@contextmanager
def nothing_written() -> Iterator[None]:
    """Memory that is asked for holds NaN until it is written, as any memory may."""
    deterministic, filled = torch.utils.deterministic, "fill_uninitialized_memory"
    before = torch.are_deterministic_algorithms_enabled(), getattr(deterministic, filled)
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(deterministic, filled, True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        setattr(deterministic, filled, before[1])
