"""The HTTP requests behind the calls of a reward: how many, made again, slow, failed.

counting() around a call --> what the client of its endpoint sends is counted there
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Requests:
    """`made` in all; `again`: after another for the same question; `slow`: over half of the time
    that there is for one; `failed`: without an answer, with a status of an error, or with an answer
    that is none to the question."""

    made: int = 0
    again: int = 0
    slow: int = 0
    failed: int = 0

    def add(self, other: Requests) -> None:
        self.made += other.made
        self.again += other.again
        self.slow += other.slow
        self.failed += other.failed


FIELDS = ("made", "again", "slow", "failed")
_CALL: ContextVar[Requests | None] = ContextVar("requests of this call", default=None)


@contextmanager
def counting() -> Iterator[Requests]:
    """Count what is sent meanwhile, by this task and by those that it starts."""
    found = Requests()
    token = _CALL.set(found)
    try:
        yield found
    finally:
        _CALL.reset(token)


def count(**more: int) -> None:
    """Add to the call in progress, if one is counted."""
    if (call := _CALL.get()) is not None:
        call.add(Requests(**more))
