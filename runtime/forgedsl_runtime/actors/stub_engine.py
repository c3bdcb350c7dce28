"""Stand-in engine for rehearsals: completions come after the time that a real engine would take.

    submit(requests) --> Batching (the simulator's model of an engine) --timer--> done(completions)

Runs in one event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forgedsl.sim.engine import Batching
from forgedsl.sim.latency import Engine
from forgedsl_runtime.data_types import Completion

TOKEN = 1
"""token id used for every token of a rehearsal"""


@dataclass(slots=True, kw_only=True)
class StubRequest:
    """A request for a made-up completion, with token counts of prompt and completion."""

    id: str
    prompt: int
    tokens: int
    truncated: bool
    tenant: Engine | None = None
    """times of the service if it is a tenant of the engine. Weights of a tenant never change"""
    before: int = 0
    """tokens of the trajectory's earlier turns, whose keys and values the engine still has"""


@dataclass(slots=True)
class _Entry:
    request: StubRequest
    version: int
    started: float
    running: int


class StubEngine:
    """One replica. `done` is called with completions that have ended."""

    def __init__(self, spec: Engine, done: Callable[[list[Completion]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done = done
        self._spec = spec
        self._timer: asyncio.TimerHandle | None = None
        self.version = 0
        self.batching: Batching[_Entry] = Batching(
            decode=spec.decode, decode_empty=spec.decode_empty,
            decode_context=spec.decode_context, max_running=spec.max_running,
        )  # fmt: skip

    def submit(self, requests: Sequence[StubRequest]) -> None:
        for request in requests:
            spec = request.tenant or self._spec
            version = 0 if request.tenant else self.version
            entry = _Entry(request, version, time.time(), self.batching.load)
            prefill = 0.0 if request.before else request.prompt * spec.prefill
            context = request.prompt / spec.siblings + request.before
            self.batching.add(self._loop.time(), entry, request.tokens, prefill, context)
        self._order()

    async def load(self, version: int) -> None:
        """Pause for new weights; requests that enter from now on have this version."""
        self.version = version
        self.batching.stop(self._loop.time(), self._spec.load)
        self._order()
        await asyncio.sleep(max(0.0, self.batching.now - self._loop.time()))

    def slow(self, factor: float) -> None:
        self.batching.advance(self._loop.time())
        self.batching.slowness = factor
        self._order()

    def _order(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end = self.batching.next_end()
        if end < math.inf:
            self._timer = self._loop.call_at(end, self._tick)

    def _tick(self) -> None:
        ended = self.batching.ended(self._loop.time())
        self._order()
        if ended:
            self._done([self._complete(entry) for entry in ended])

    def _complete(self, entry: _Entry) -> Completion:
        request = entry.request
        newest = entry.version if request.tenant else self.version
        return Completion(
            id=request.id, token_ids=[TOKEN] * request.tokens, logprobs=[0.0] * request.tokens,
            mask=[True] * request.tokens, text="", truncated=request.truncated,
            version_min=entry.version, version_max=newest, started=entry.started,
            finished=time.time(), running=entry.running,
        )  # fmt: skip
