"""A replica that computes slower than its peers: a host with a fault, or with other work."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from forgedsl.runtime.items import Completion
from forgedsl.runtime.upstream.monarch import Mesh

WINDOW = 128
"""completions that a replica is judged by"""
SLOW = 2.0
"""times the median of the others"""


class Pace:
    """Seconds for a token of each replica of a service; `tell` hears once of each that is slow."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._recent: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}
        self._told: set[str] = set()

    def took(self, mesh: Mesh, done: Completion) -> None:
        """A completion came from a replica."""
        if not done.token_ids or mesh.name in self._told:
            return
        recent = self._recent.setdefault(mesh.name, deque(maxlen=WINDOW))
        recent.append((done.finished - done.started) / len(done.token_ids))
        count = self._counts[mesh.name] = self._counts.get(mesh.name, 0) + 1
        others = [
            statistics.median(times)
            for name, times in self._recent.items()
            if name != mesh.name and len(times) == WINDOW
        ]
        if count % WINDOW or not others:
            return
        times = statistics.median(recent) / max(statistics.median(others), 1e-9)
        if times >= SLOW:
            self._told.add(mesh.name)
            self._tell(
                f"{mesh.name} on host {mesh.on.start} takes {times:.1f} times as long for a token "
                f"as the other replicas of {mesh.service} (median of {WINDOW} completions): look "
                "at what else runs there, or leave the host out"
            )
