"""Simulated services: engines behind a router, and servers with a fixed number of places.

    Fleet.sample(tokens, prefill, context) -> replica -> ... -> version at which it began
    Places.work(seconds)          a trainer (one place), a reward pool, the controller's process

They behave like forgedsl_runtime.services: routing is least loaded or round robin, and a dead
replica is restarted.
"""

from __future__ import annotations

import asyncio
import heapq
import math

from forgedsl.sim.engine import Batching
from forgedsl.sim.latency import Engine

NOTICE_SECONDS = 10.0
"""seconds until the death of a process is noticed"""


class Places:
    """Server that works on at most `count` tasks at a time, first come, first served."""

    def __init__(self, count: int = 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = [0.0] * count
        self.count = count
        self.busy = 0.0

    async def work(self, seconds: float) -> None:
        """Wait for a free place, then for the work."""
        now = self._loop.time()
        end = max(self._free[0], now) + seconds
        heapq.heapreplace(self._free, end)
        self.busy += seconds
        if end > now:
            await asyncio.sleep(end - now)


class Request:
    """One completion to sample."""

    __slots__ = ("context", "done", "prefill", "tokens", "version")

    def __init__(
        self, tokens: float, prefill: float, context: float, done: asyncio.Future[int]
    ) -> None:
        self.tokens = tokens
        self.prefill = prefill
        self.context = context
        self.done = done
        self.version = 0


class Replica:
    """One engine. If it dies, requests sent to it wait in `undelivered` until its death is noticed;
    then other replicas get them."""

    __slots__ = ("alive", "due", "engine", "noticed", "undelivered")

    def __init__(self, spec: Engine) -> None:
        self.engine: Batching[Request] = Batching(
            decode=spec.decode, decode_empty=spec.decode_empty,
            decode_context=spec.decode_context, max_running=spec.max_running,
        )  # fmt: skip
        self.alive = True
        self.noticed = False
        self.undelivered: list[Request] = []
        self.due = math.inf
        """time of the next scheduled event of this engine"""


class Fleet:
    """All replicas of a generator service, and the version of their weights."""

    def __init__(self, spec: Engine, replicas: int, *, in_turn: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self.spec = spec
        self.version = 0
        self.lost = 0
        self.deaths = 0
        self._in_turn = in_turn
        self._turn = 0
        self._unassigned: list[Request] = []
        """requests that wait because no engine is alive"""
        self.replicas = [Replica(spec) for _ in range(replicas)]
        self._by_load = [(0, i) for i in range(replicas)]

    async def sample(self, tokens: float, prefill: float, context: float) -> int:
        """Sample a completion whose first decode step reads `context` tokens, its share of a prompt
        included; at its end, return the version with which it began."""
        request = Request(tokens, prefill, context, self._loop.create_future())
        self._hand_out(request)
        return await request.done

    async def load(self, version: int) -> None:
        """Pause every engine for new weights; return when the last one has them. A request that
        enters an engine from now on waits for the swap, so it is sampled with `version`."""
        self.version = version
        now = done = self._loop.time()
        for index, replica in enumerate(self.replicas):
            if replica.alive:
                replica.engine.stop(now, self.spec.load, self.spec.again)
                done = max(done, replica.engine.now)
                self._schedule_end(index)
        await asyncio.sleep(done - now)

    def slow(self, index: int | None, factor: float) -> None:
        for i in range(len(self.replicas)) if index is None else [index]:
            self.replicas[i].engine.advance(self._loop.time())
            self.replicas[i].engine.slowness = factor
            self._schedule_end(i)

    def kill(self, index: int) -> None:
        """Kill a process. After a delay the death is noticed and its requests go elsewhere; then it
        restarts."""
        replica, now = self.replicas[index], self._loop.time()
        if not replica.alive:
            return
        self.deaths += 1
        replica.alive, replica.noticed = False, False
        replica.engine.advance(now)
        replica.undelivered = replica.engine.lose()
        self._loop.call_at(now + NOTICE_SECONDS, self._notice, index)
        self._loop.call_at(now + max(NOTICE_SECONDS, self.spec.start), self._return, index)

    def advance(self) -> None:
        """Account for the work of all engines up to now."""
        for replica in self.replicas:
            replica.engine.advance(self._loop.time())

    # ---- inside

    def _hand_out(self, request: Request) -> None:
        index = self._route()
        if index is None:
            self._unassigned.append(request)
            return
        replica = self.replicas[index]
        request.version = self.version
        if replica.alive:
            replica.engine.add(
                self._loop.time(), request, request.tokens, request.prefill, request.context
            )
            self._schedule_end(index)
        else:
            replica.undelivered.append(request)
        self._push_load(index)

    def _notice(self, index: int) -> None:
        replica = self.replicas[index]
        replica.noticed = True
        undelivered, replica.undelivered = replica.undelivered, []
        self.lost += len(undelivered)
        for request in undelivered:
            self._hand_out(request)

    def _return(self, index: int) -> None:
        replica = self.replicas[index]
        replica.alive, replica.noticed = True, False
        replica.engine.now = self._loop.time()
        self._push_load(index)
        waiting, self._unassigned = self._unassigned, []
        for request in waiting:
            self._hand_out(request)

    def _load(self, index: int) -> int:
        replica = self.replicas[index]
        return replica.engine.load + len(replica.undelivered)

    def _route(self) -> int | None:
        if self._in_turn:
            for _ in self.replicas:
                self._turn += 1
                if not self.replicas[self._turn % len(self.replicas)].noticed:
                    return self._turn % len(self.replicas)
            return None
        while self._by_load:
            load, index = self._by_load[0]
            if not self.replicas[index].noticed and load == self._load(index):
                return index
            heapq.heappop(self._by_load)  # outdated: a newer entry exists
        return None

    def _push_load(self, index: int) -> None:
        """Push the new load of a replica on the router's heap. The router skips the older entry."""
        if not self._in_turn:
            heapq.heappush(self._by_load, (self._load(index), index))

    def _schedule_end(self, index: int) -> None:
        """Schedule a timer for the end of the replica's next completion, if none is due earlier."""
        replica = self.replicas[index]
        end = replica.engine.next_end()
        if end < replica.due - 1e-9:
            replica.due = end
            self._loop.call_at(end, self._tick, index, end)

    def _tick(self, index: int, due: float) -> None:
        replica = self.replicas[index]
        if due != replica.due:
            return  # outdated: an earlier event was scheduled
        replica.due = math.inf
        ended = replica.engine.ended(max(due, self._loop.time()))
        if ended:
            self._push_load(index)
        self._schedule_end(index)
        for request in ended:
            if not request.done.done():
                request.done.set_result(request.version)
