"""How the ranks of a trainer leave a step together, with the weights as they were before it.

    hold()           by every rank: the microbatch that it does not begin without a decision
    leave_before(n)  to every rank, the largest of these: all of them end before microbatch n

Ranks meet in every microbatch, so none may stop where another goes on. A rank that waits has begun
all that a rank which is behind it needs, and no rank has begun the one that all end before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

AHEAD = 2
"""microbatches that a rank may still begin while the decision is on its way"""


class StepLeft(Exception):
    """The step in progress is left."""


class Leaving:
    """One rank's side. `hold` and `decide` are called while a worker thread computes."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._begun = 0
        self._possible: bool | None = None
        """of the step in progress; None: there is none"""
        self._hold: int | None = None
        self._stop: int | None = None

    @contextmanager
    def step(self, *, possible: bool) -> Iterator[None]:
        """A step; one that changes weights before its end cannot be left."""
        with self._turn:
            self._begun, self._possible = 0, possible
        try:
            yield
        finally:
            with self._turn:
                self._begun, self._possible = 0, None

    def microbatch(self) -> None:
        """Before each of a step.

        Raises:
            StepLeft: all ranks end here.
        """
        with self._turn:
            if not self._possible:
                return
            self._turn.wait_for(lambda: self._hold is None or self._begun < self._hold)
            if self._stop is not None and self._begun >= self._stop:
                raise StepLeft
            self._begun += 1

    def hold(self) -> int | None:
        """The microbatch to wait before; None where the step cannot be left."""
        with self._turn:
            if self._possible is False:
                return None
            self._hold = self._begun + AHEAD
            return self._hold

    def decide(self, before: int | None) -> None:
        """Leave before this microbatch, or (None) go on."""
        with self._turn:
            self._hold, self._stop = None, before
            self._turn.notify_all()
