"""Fluid model of an engine's continuous batching: all running sequences decode at the same rate.

    add(now, request, tokens, prefill) ... next_end() -> time ... ended(now) -> requests

With n running sequences, a token of each takes `decode + n * decode_sequence` seconds. A prefill
stops the others for its time. A weight swap stops all, for longer if KV caches are recomputed.
Waiting requests start in order as soon as a sequence ends. The cost is O(log n) per request,
independent of its length. The simulator runs it on simulated time, a rehearsal on the clock.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Generic, TypeVar

R = TypeVar("R")
LEAST = 1e-9
"""minimum seconds of a decode step"""


class Batching(Generic[R]):
    """The requests of one engine."""

    def __init__(self, *, decode: float, decode_sequence: float, max_running: int) -> None:
        self.decode = decode
        self.decode_sequence = decode_sequence
        self.max_running = max_running
        self.slowness = 1.0
        """factor of a straggler, above 1"""
        self.now = 0.0
        """time up to which work is accounted for; ahead of the clock while the engine is stopped"""
        self.busy = 0.0
        """seconds with sequences running"""
        self.stopped = 0.0
        """seconds of prefill and of weight swaps"""
        self.tokens = 0.0
        self._level = 0.0
        """tokens of a sequence that would have run since the start"""
        self._running: list[tuple[float, int, R, float, float]] = []
        """heap by final level: request, initial level, and prefill"""
        self._waiting: deque[tuple[R, float, float]] = deque()
        self._count = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def load(self) -> int:
        """Number of unfinished requests."""
        return len(self._running) + len(self._waiting)

    def add(self, now: float, request: R, tokens: float, prefill: float) -> None:
        """Add a request for `tokens` tokens, whose prompt takes `prefill` seconds."""
        self.advance(now)
        self._waiting.append((request, tokens, prefill))
        self._admit()

    def advance(self, now: float) -> None:
        """Account for the work up to `now`."""
        if now > self.now:
            if self._running:
                gained = (now - self.now) / self._pace()
                self._level += gained
                self.tokens += gained * len(self._running)
                self.busy += now - self.now
            self.now = now

    def stop(self, now: float, seconds: float, again: float = 0.0) -> None:
        """Stop for `seconds`, plus `again` seconds per token in flight, plus the prefill of their
        prompts."""
        self.advance(now)
        if again:
            for _, _, _, begun, prefill in self._running:
                seconds += again * (self._level - begun) + prefill
        self.now += seconds
        self.stopped += seconds

    def next_end(self) -> float:
        """Return the time when the next sequence ends; infinite if none runs."""
        if not self._running:
            return math.inf
        return self.now + max(0.0, self._running[0][0] - self._level) * self._pace()

    def ended(self, now: float) -> list[R]:
        """Return the requests that have ended by `now`, and start waiting ones."""
        self.advance(now)
        found: list[R] = []
        while self._running and self._running[0][0] <= self._level + 1e-6:
            found.append(heapq.heappop(self._running)[2])
        if found:
            self._admit()
        return found

    def lose(self) -> list[R]:
        """Drop all requests, as when the process dies; return them."""
        found = [each[2] for each in self._running]
        found += [request for request, _, _ in self._waiting]
        self._running.clear()
        self._waiting.clear()
        return found

    def _pace(self) -> float:
        pace = self.slowness * (self.decode + len(self._running) * self.decode_sequence)
        return max(LEAST, pace)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_running:
            request, tokens, prefill = self._waiting.popleft()
            self._count += 1
            begun = self._level
            heapq.heappush(self._running, (begun + tokens, self._count, request, begun, prefill))
            self.now += prefill * self.slowness
            self.stopped += prefill * self.slowness
