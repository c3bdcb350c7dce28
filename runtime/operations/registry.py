"""How all operations run, in one tuple."""

from __future__ import annotations

from forgedsl.runtime.operations import ends, functions, logprobs, recall, sample
from forgedsl.runtime.operations.base import Operation

OPERATIONS: tuple[Operation, ...] = (
    *ends.OPERATIONS, *sample.OPERATIONS, *logprobs.OPERATIONS, *functions.OPERATIONS,
    *recall.OPERATIONS,
)  # fmt: skip


def unit_of(op: str) -> Operation:
    """What runs this operation."""
    return next(each for each in OPERATIONS if each.name == op)
