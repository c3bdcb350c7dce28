"""All operations in one tuple, and look-ups by name and by written form."""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl import extensions
from forgedsl.operations import (
    batches,
    call,
    draw,
    keep,
    logprobs,
    pairs,
    recall,
    replay,
    sample,
    score,
    step,
    sync,
)
from forgedsl.operations.base import Declaration, Operation
from forgedsl.operations.statements import Form
from forgedsl.services import registry as services
from forgedsl.settings import Live
from forgedsl.types.flow import Role

OPERATIONS: tuple[Operation, ...] = (
    *draw.OPERATIONS, *batches.OPERATIONS, *pairs.OPERATIONS, *recall.OPERATIONS,
    *step.OPERATIONS, *logprobs.OPERATIONS, *sample.OPERATIONS, *score.OPERATIONS,
    *keep.OPERATIONS, *call.OPERATIONS, *replay.OPERATIONS, *sync.OPERATIONS,
)  # fmt: skip
"""all operations, in the order of the reference"""

_BY_NAME = {each.name: each for each in OPERATIONS}


def operations() -> tuple[Operation, ...]:
    """Return all operations, including those of extensions."""
    return (*OPERATIONS, *extensions.added("OPERATIONS", Operation))


def operation(name: str) -> Operation:
    """Return the operation of this name. Raises KeyError."""
    if name not in _BY_NAME:
        return {each.name: each for each in operations()}[name]
    return _BY_NAME[name]


def working() -> tuple[Operation, ...]:
    """Return the operations whose work is logged as spans, in the order in which a group passes
    them."""
    order = (Role.SAMPLES, Role.SCORES, Role.MEASURES, Role.UPDATES, Role.TRANSFERS)
    spans = [each for each in operations() if each.span]
    return tuple(sorted(spans, key=lambda e: min((order.index(r) for r in e.roles & {*order}),
                                                 default=len(order))))  # fmt: skip


def forms(owner: str) -> Iterator[tuple[Operation, Form]]:
    """Yield the methods of a declaration. `owner` is its kind, or the kind of its service."""
    can = next((kind.can for kind in services.kinds() if kind.name == owner), None)
    for each in operations():
        for form in each.forms:
            if form.owner == owner or (form.owner == "service" and form.capability in (can or ())):
                yield each, form


def written(owner: str, method: str = "") -> tuple[Operation, Form] | None:
    """Return the operation that `OWNER.method(...)` means, with its form."""
    return next((found for found in forms(owner) if found[1].method == method), None)


def declarations() -> dict[str, Declaration]:
    """Return the declarations that operations of this package add, by kind."""
    found = (each.declares for each in OPERATIONS)
    return {each.kind.name: each for each in found if each is not None}


METHODS: Live[tuple[str, ...]] = Live(
    lambda: {
        owner: tuple(form.method for _, form in forms(owner))
        for owner in ("dataset", *declarations(), *(kind.name for kind in services.kinds()))
    }
)
"""methods that statements can call, by owner"""
