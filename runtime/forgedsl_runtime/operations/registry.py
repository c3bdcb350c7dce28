"""Table of all operations."""

from __future__ import annotations

from forgedsl import extensions
from forgedsl_runtime.operations import ends, functions, logprobs, recall, sample
from forgedsl_runtime.operations.base import Operation

OPERATIONS: tuple[Operation, ...] = (
    *ends.OPERATIONS, *sample.OPERATIONS, *logprobs.OPERATIONS, *functions.OPERATIONS,
    *recall.OPERATIONS,
)  # fmt: skip


_BY_NAME = {each.name: each for each in OPERATIONS}


def operation_of(op: str) -> Operation:
    """Return the operation with this name, built in or from an extension."""
    if op not in _BY_NAME:
        added: dict[str, Operation] = {
            each.name: each for each in extensions.added("OPERATIONS", Operation, "runtime")
        }
        return added[op]
    return _BY_NAME[op]
