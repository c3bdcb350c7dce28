"""Protocol by which all ranks of a trainer abandon a step together, with unchanged weights.

    pause()       called on every rank; returns the microbatch before which this rank pauses
    decide(n)    called on every rank, with the largest of these numbers; every rank stops before
                 microbatch n

Collectives join the ranks in every microbatch, so all ranks must stop before the same one. No rank
has begun microbatch n, since n is the largest of the pauses. Each rank stops after it has begun all
microbatches before n. So the ranks have begun the same microbatches, and none waits in a collective
for one that stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MAX_AHEAD = 2
"""microbatches that a rank may begin before the decision arrives"""


class StepAbandoned(Exception):
    """The step in progress is abandoned."""


class AbandonStep:
    """One rank's side of the protocol. `pause` and `decide` are called while a worker thread
    computes."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._begun = 0
        self._possible: bool | None = None
        """True if the step in progress can be abandoned; None without a step"""
        self._pause_at: int | None = None
        self._stop: int | None = None

    @contextmanager
    def step(self, *, possible: bool) -> Iterator[None]:
        """Run a step. A step that changes weights before its end is not `possible` to abandon."""
        with self._turn:
            self._begun, self._possible = 0, possible
        try:
            yield
        finally:
            with self._turn:
                self._begun, self._possible = 0, None

    def microbatch(self) -> None:
        """Wait here before each microbatch of a step, if the controller pauses the step.

        Raises:
            StepAbandoned: all ranks stop here.
        """
        with self._turn:
            if not self._possible:
                return
            self._turn.wait_for(lambda: self._pause_at is None or self._begun < self._pause_at)
            if self._stop is not None and self._begun >= self._stop:
                raise StepAbandoned
            self._begun += 1

    def pause(self) -> int | None:
        """Return the microbatch to wait before; None if the step cannot be abandoned."""
        with self._turn:
            if self._possible is False:
                return None
            self._pause_at = self._begun + MAX_AHEAD
            return self._pause_at

    def decide(self, before: int | None) -> None:
        """Stop before this microbatch, or go on (None)."""
        with self._turn:
            self._pause_at, self._stop = None, before
            self._turn.notify_all()
