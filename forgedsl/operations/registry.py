"""All operations, in one tuple."""

from __future__ import annotations

from forgedsl.operations import functions, logprobs, recall, sample, sources, step
from forgedsl.operations.base import Form, Operation

OPERATIONS: tuple[Operation, ...] = (
    *sources.OPERATIONS, *sample.OPERATIONS, *logprobs.OPERATIONS, *functions.OPERATIONS,
    *recall.OPERATIONS, *step.OPERATIONS,
)  # fmt: skip


_BY_NAME = {each.name: each for each in OPERATIONS}


def operation(name: str) -> Operation:
    """The operation of this name; a statement may call one by another word."""
    return _BY_NAME["logprobs" if name == "values" else name]


def written(owner: str, method: str) -> tuple[Operation, Form] | None:
    """The operation that `OWNER.method(...)` means."""
    forms = ((each, form) for each in OPERATIONS for form in each.forms)
    return next(((o, f) for o, f in forms if (f.owner, f.method) == (owner, method)), None)
