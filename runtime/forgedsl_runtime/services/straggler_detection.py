"""Find replicas and ranks that are slower than their peers, because of a faulty or busy host.

Replicas are compared by their seconds per token. Ranks of a trainer wait for each other within a
step, so step times do not differ. Now and then each rank times the same piece of work alone.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

WINDOW, SLOW = 128, 2.0
"""for replicas: the median time per token is taken over WINDOW completions. A replica is slow if
its median is at least SLOW times that of the other replicas"""
PROBES, SLOW_RANK, LEAST = 5, 1.5, 0.004
"""for ranks: the median time is taken over PROBES timed pieces of work. A rank is slow if its
median is at least SLOW_RANK times that of the other ranks, and at least LEAST seconds longer"""
REMEDY = (
    ": check for other processes there and for a device with reduced clocks, or exclude the host"
)


class StragglerDetector:
    """Compares the times of peers by their medians over the last `window` times. If the median of a
    peer is at least `slow` times that of the others and at least `least` seconds longer, calls
    `tell` with `text`, once for each such peer."""

    def __init__(
        self, tell: Callable[[str], object], text: str, window: int, slow: float, least: float = 0.0
    ) -> None:
        self._tell, self._text = tell, text
        self._window, self._slow, self._least = window, slow, least
        self._recent: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}
        self._reported: set[str] = set()

    def record_time(self, who: str, seconds: float) -> None:
        """Record a time of one peer."""
        if who in self._reported:
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
            self._reported.add(who)
            self._tell(self._text.format(who, mine / peers, self._window) + REMEDY)
