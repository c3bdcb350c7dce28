"""Find replicas and ranks that are slower than their peers, because of a faulty or busy host.

Replicas are compared by their seconds per token. Ranks of a trainer wait for each other within a
step, so step times do not differ. Now and then each rank times the same piece of work alone.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

WINDOW, SLOW = 128, 2.0
"""number of completions to judge a replica by, and its allowed multiple of the other replicas'
median"""
PROBES, SLOW_RANK, LEAST = 5, 1.5, 0.004
"""the same for a rank and its timed pieces of work; LEAST is the least difference in seconds"""
REMEDY = (
    ": check for other processes there and for a device with reduced clocks, or exclude the host"
)


class StragglerDetector:
    """Compares the times of peers. Calls `tell` once with `text` for each peer whose median over
    `window` times is `slow` times that of the others, and at least `least` seconds longer."""

    def __init__(
        self, tell: Callable[[str], object], text: str, window: int, slow: float, least: float = 0.0
    ) -> None:
        self._tell, self._text = tell, text
        self._window, self._slow, self._least = window, slow, least
        self._recent: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}
        self._told: set[str] = set()

    def record_time(self, who: str, seconds: float) -> None:
        """Record a time of one peer."""
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
