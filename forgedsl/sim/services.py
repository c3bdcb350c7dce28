"""Simulated services: engines behind a router, pools of rewards, models that score sequences.

    Fleet.sample(request) -> replica -> ... -> done(request)     at the request's end
    Pool.call(item) -> process -> ... -> done(item)
    Scorer.call(tokens, done)

They follow runtime/services: least loaded or in turn; rewards go out in packets of a few to one
process at a time; log-probs that wait go out together.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from forgedsl.sim.engine import Batching
from forgedsl.sim.latency import Engine, Titan
from forgedsl.sim.world import Server, World

NOTICE = 10.0
"""seconds until the death of a process is seen"""


class Request:
    """One completion to sample. `key` says whose it is."""

    __slots__ = ("began", "key", "prefill", "tokens", "version")

    def __init__(self, key: tuple[Any, ...], tokens: float, prefill: float, began: float) -> None:
        self.key = key
        self.tokens = tokens
        self.prefill = prefill
        self.version = 0
        self.began = began


class Replica:
    """One engine. While it is dead, requests sent to it get lost, too, until that is noticed."""

    __slots__ = ("alive", "due", "engine", "noticed", "owed")

    def __init__(self, engine: Batching[Request]) -> None:
        self.engine = engine
        self.alive = True
        self.noticed = False
        self.owed: list[Request] = []
        self.due = math.inf
        """when the next event of this engine is ordered for"""


class Fleet:
    """All replicas of a generator service, and the version of the weights that they serve."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        replicas: int,
        *,
        in_turn: bool,
        done: Callable[[Request], None],
    ) -> None:
        self.world = world
        self.spec = engine
        self.version = 0
        self.lost = 0
        self.deaths = 0
        self._in_turn = in_turn
        self._done = done
        self._turn = 0
        self._nobody: list[Request] = []
        """requests for which there is no engine at the moment"""
        self.replicas = [
            Replica(
                Batching(
                    decode=engine.decode,
                    decode_sequence=engine.decode_sequence,
                    max_running=engine.max_running,
                )
            )
            for _ in range(replicas)
        ]
        self._by_load = [(0, i) for i in range(replicas)]

    def sample(self, request: Request) -> None:
        index = self._route()
        if index is None:
            self._nobody.append(request)
            return
        replica = self.replicas[index]
        request.version = self.version
        if replica.alive:
            replica.engine.add(self.world.now, request, request.tokens, request.prefill)
            self._order(index)
        else:
            replica.owed.append(request)
        self._note(index)

    def load(self, seconds: float, version: int) -> float:
        """Every engine stops for new weights; when the last of them has them.

        What enters an engine from now on waits for the swap, so it is sampled with `version`.
        """
        self.version = version
        done = self.world.now
        for index, replica in enumerate(self.replicas):
            if replica.alive:
                replica.engine.stop(self.world.now, seconds)
                done = max(done, replica.engine.now)
                self._order(index)
        return done

    def slow(self, index: int | None, factor: float) -> None:
        for i in range(len(self.replicas)) if index is None else [index]:
            self.replicas[i].engine.advance(self.world.now)
            self.replicas[i].engine.slowness = factor
            self._order(i)

    def kill(self, index: int) -> None:
        """A process dies; it is noticed, its requests go elsewhere, and it is started again."""
        replica = self.replicas[index]
        if not replica.alive:
            return
        self.deaths += 1
        replica.alive, replica.noticed = False, False
        replica.engine.advance(self.world.now)
        replica.owed = replica.engine.lose()
        self.world.at(self.world.now + NOTICE, self._notice, index)
        self.world.at(self.world.now + max(NOTICE, self.spec.start), self._return, index)

    def advance(self) -> None:
        """Account for the work of all engines up to now."""
        for replica in self.replicas:
            replica.engine.advance(self.world.now)

    # ---- inside

    def _notice(self, index: int) -> None:
        replica = self.replicas[index]
        replica.noticed = True
        owed, replica.owed = replica.owed, []
        self.lost += len(owed)
        for request in owed:
            self.sample(request)

    def _return(self, index: int) -> None:
        replica = self.replicas[index]
        replica.alive, replica.noticed = True, False
        replica.engine.now = self.world.now
        self._note(index)
        waiting, self._nobody = self._nobody, []
        for request in waiting:
            self.sample(request)

    def _load(self, index: int) -> int:
        replica = self.replicas[index]
        return replica.engine.load + len(replica.owed)

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
            heapq.heappop(self._by_load)  # of the past: it has been noted anew since
        return None

    def _note(self, index: int) -> None:
        """Keep the router's order; entries of loads that are over stay until they come up."""
        if not self._in_turn:
            heapq.heappush(self._by_load, (self._load(index), index))

    def _order(self, index: int) -> None:
        """See to it that there is an event no later than the next end."""
        replica = self.replicas[index]
        end = replica.engine.next_end()
        if end < replica.due - 1e-9:
            replica.due = end
            self.world.at(end, self._tick, index, end)

    def _tick(self, index: int, due: float) -> None:
        replica = self.replicas[index]
        if due != replica.due:
            return  # an earlier one was ordered since
        replica.due = math.inf
        ended = replica.engine.ended(self.world.now)
        if ended:
            self._note(index)
        self._order(index)
        for request in ended:
            self._done(request)


class Pool:
    """Processes of a reward. A call is `(key, seconds)`."""

    def __init__(
        self, world: World, procs: int, packet: int, done: Callable[[tuple[Any, ...]], None]
    ) -> None:
        self.world = world
        self.busy = 0.0
        self.procs = self._idle = procs
        self._packet = packet
        self._done = done
        self._waiting: deque[tuple[tuple[Any, ...], float]] = deque()

    def call(self, key: tuple[Any, ...], seconds: float) -> None:
        self._waiting.append((key, seconds))
        if self._idle:
            self._send()

    def _send(self) -> None:
        count = min(self._packet, len(self._waiting))
        packet = [self._waiting.popleft() for _ in range(count)]
        length = sum(seconds for _, seconds in packet)
        self._idle -= 1
        self.busy += length
        self.world.at(self.world.now + length, self._back, packet)

    def _back(self, packet: list[tuple[tuple[Any, ...], float]]) -> None:
        self._idle += 1
        if self._waiting:
            self._send()
        for key, _ in packet:
            self._done(key)


class Scorer:
    """Log-probs of a frozen model, one call at a time; what waits meanwhile makes the next."""

    def __init__(self, world: World, titan: Titan) -> None:
        self.server = Server(world)
        self.busy = 0.0
        self._world = world
        self._titan = titan
        self._waiting: list[tuple[float, Callable[[], None]]] = []
        self._running = False

    def call(self, tokens: float, done: Callable[[], None]) -> None:
        self._waiting.append((tokens, done))
        if not self._running:
            self._send()

    def _send(self) -> None:
        packet, self._waiting = self._waiting, []
        self._running = True
        tokens = sum(count for count, _ in packet)
        seconds = self._titan.logprobs + tokens * self._titan.logprobs_token
        self.busy += seconds
        self._world.at(self.server.book(seconds), self._back, [done for _, done in packet])

    def _back(self, packet: list[Callable[[], None]]) -> None:
        self._running = False
        if self._waiting:
            self._send()
        for done in packet:
            done()
