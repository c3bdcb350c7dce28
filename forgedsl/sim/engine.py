"""Fluid model of an engine's continuous batching: all running sequences decode at the same rate.

    add(now, request, tokens, prefill, context) ... next_end() -> time ... ended(now) -> requests

With n running sequences, a token of each takes `decode + n * decode_empty` seconds, and
`decode_context` more for each token of context that they have by then. A prefill stops the others
for its time. A weight swap stops all, for longer if KV caches are recomputed.
Waiting requests start in order as soon as a sequence ends. The cost is O(log n) per request,
independent of its length. The simulator runs it on simulated time, a rehearsal on the clock.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Generic, NamedTuple, TypeVar

R = TypeVar("R")
LEAST = 1e-9
"""minimum seconds of a decode step"""


class Running(NamedTuple, Generic[R]):
    """A sequence that runs. Levels are the tokens that a sequence running since the start of the
    engine would have."""

    last: float
    """the level at which it ends"""
    number: int
    request: R
    first: float
    """the level at which it began"""
    prefill: float
    """seconds of its prefill"""
    context: float
    """tokens of its context when it began"""


class Batching(Generic[R]):
    """The requests of one engine."""

    def __init__(
        self,
        *,
        decode: float,
        decode_empty: float,
        max_running: int,
        decode_context: float = 0.0,
    ) -> None:
        self.decode = decode
        self.decode_empty = decode_empty
        self.decode_context = decode_context
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
        self._running: list[Running[R]] = []
        """heap by the level at which they end"""
        self._base = 0.0
        """tokens of context of the running sequences, if all had begun at the level 0"""
        self._waiting: deque[tuple[R, float, float, float]] = deque()
        self._count = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def load(self) -> int:
        """Number of unfinished requests."""
        return len(self._running) + len(self._waiting)

    def add(
        self, now: float, request: R, tokens: float, prefill: float, context: float = 0.0
    ) -> None:
        """Add a request for `tokens` tokens, whose prompt takes `prefill` seconds, and of which
        each decode step reads `context` tokens."""
        self.advance(now)
        self._waiting.append((request, tokens, prefill, context))
        self._admit()

    def advance(self, now: float) -> None:
        """Account for the work up to `now`."""
        if now > self.now:
            if self._running:
                gained = self._gained(now - self.now)
                self._level += gained
                self.tokens += gained * len(self._running)
                self.busy += now - self.now
            self.now = now

    def stop(self, now: float, seconds: float, again: float = 0.0) -> None:
        """Stop for `seconds`, plus `again` seconds per token in flight, plus the prefill of their
        prompts."""
        self.advance(now)
        if again:
            for each in self._running:
                seconds += again * (self._level - each.first) + each.prefill
        self.now += seconds
        self.stopped += seconds

    def next_end(self) -> float:
        """Return the time when the next sequence ends; infinite if none runs."""
        if not self._running:
            return math.inf
        return self.now + self._seconds(max(0.0, self._running[0].last - self._level))

    def ended(self, now: float) -> list[R]:
        """Return the requests that have ended by `now`, and start waiting ones."""
        self.advance(now)
        found: list[R] = []
        while self._running and self._running[0].last <= self._level + 1e-6:
            each = heapq.heappop(self._running)
            self._base -= each.context - each.first
            found.append(each.request)
        if not self._running:
            self._base = 0.0
        if found:
            self._admit()
        return found

    def lose(self) -> list[R]:
        """Drop all requests, as when the process dies; return them."""
        found = [each.request for each in self._running]
        found += [request for request, *_ in self._waiting]
        self._running.clear()
        self._base = 0.0
        self._waiting.clear()
        return found

    def _rates(self) -> tuple[float, float]:
        """Return the seconds of the next decode step, and by how much each step is longer than the
        one before it: all contexts grow by a token."""
        count = len(self._running)
        contexts = self._base + count * self._level
        step = self.decode + count * self.decode_empty + self.decode_context * contexts
        return max(LEAST, self.slowness * step), self.slowness * self.decode_context * count

    def _seconds(self, tokens: float) -> float:
        """Return the seconds in which each running sequence gains so many tokens."""
        step, growth = self._rates()
        return tokens * (step + growth * tokens / 2)

    def _gained(self, seconds: float) -> float:
        """Return the tokens that each running sequence gains in so many seconds."""
        step, growth = self._rates()
        return 2 * seconds / (step + math.sqrt(step * step + 2 * growth * seconds))

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_running:
            request, tokens, prefill, context = self._waiting.popleft()
            self._count += 1
            first = self._level
            each = Running(first + tokens, self._count, request, first, prefill, context)
            heapq.heappush(self._running, each)
            self._base += context - first
            self.now += prefill * self.slowness
            self.stopped += prefill * self.slowness
