"""A replica or rank that computes slower than its peers: a host with a fault, or with other work.

Replicas say it by their completions. Ranks of a trainer wait for each other within a step, which
takes all of them the time of the slowest: they do the same piece of work now and then, each alone.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

WINDOW, SLOW = 128, 2.0
"""completions that a replica is judged by, and times the median of the others that it may take"""
PROBES, SLOW_RANK, LEAST = 5, 1.5, 0.004
"""the same of a rank and its pieces of work, each longer by so many seconds"""
REMEDY = ": look at what else runs there and at the clocks of its device, or leave the host out"


class Pace:
    """Seconds of each of several for the same; `tell` hears `text` once of each that is slow: by
    the medians of `window` times, as soon as there are so many."""

    def __init__(
        self, tell: Callable[[str], object], text: str, window: int, slow: float, least: float = 0.0
    ) -> None:
        self._tell, self._text = tell, text
        self._window, self._slow, self._least = window, slow, least
        self._recent: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}
        self._told: set[str] = set()

    def took(self, who: str, seconds: float) -> None:
        """One of them has done it."""
        if who in self._told:
            return
        recent = self._recent.setdefault(who, deque(maxlen=self._window))
        recent.append(seconds)
        count = self._counts[who] = self._counts.get(who, 0) + 1
        others = [
            statistics.median(times)
            for name, times in self._recent.items()
            if name != who and len(times) == self._window
        ]
        if count % self._window or not others:
            return
        mine, peers = statistics.median(recent), max(statistics.median(others), 1e-9)
        if mine >= self._slow * peers and mine - peers >= self._least:
            self._told.add(who)
            self._tell(self._text.format(who, mine / peers, self._window) + REMEDY)
