"""Counts of HTTP requests made for the calls of a reward: all, repeated, slow, failed.

counting() around a call --> counts the requests of its endpoint's client
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Requests:
    """Counts of requests. `made`: all. `again`: repeated for the same question. `slow`: took over
    half of the timeout. `failed`: no answer, an error status, or an answer without a grade."""

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
    """Count the requests sent meanwhile by this task and the tasks that it starts."""
    found = Requests()
    token = _CALL.set(found)
    try:
        yield found
    finally:
        _CALL.reset(token)


def count(**more: int) -> None:
    """Add to the counts of the call in progress, if there is one."""
    if (call := _CALL.get()) is not None:
        call.add(Requests(**more))
