"""Client of an environment's pool: where trajectories live, and what becomes of them.

    begin() -> Session: the process with the fewest --reset, step, close--> its object there

A trajectory whose process or mesh is gone has crashed (the driver tries it again), whatever is told
of it; an environment that fails too often ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

from forgedsl.environment import Start, Step, Task, Turn
from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.runtime.child import Calls
from forgedsl.runtime.data.chat import ChatTokenizer
from forgedsl.runtime.endpoints import ServiceError
from forgedsl.runtime.environments.bridge import Bridge
from forgedsl.runtime.environments.driver import Crash, Driver, Late
from forgedsl.runtime.environments.line import connect
from forgedsl.runtime.environments.worker import Reply, Request
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.guards import RewardGuard
from forgedsl.runtime.items import Prompt
from forgedsl.runtime.upstream.monarch import Mesh

MAX_FAILED = 0.25
"""part of the last trajectories that may crash"""
CALL_GRACE = 0.5
"""seconds beside those of the tools that a turn calls"""


class EnvironmentClient:
    """All trajectories of one environment."""

    def __init__(
        self, name: str, environment: spec.Environment, mesh: Mesh, events: EventLog
    ) -> None:
        self.name, self.mesh, self.environment = name, mesh, environment
        self._events = events
        self._keys = itertools.count()
        self._held = [0] * mesh.size
        self._alive = asyncio.Event()
        self._alive.set()
        self._lines: dict[int, Calls] = {}
        self._opening = asyncio.Lock()
        self._told: Counter[str] = Counter()
        remedy = (
            "mend it: an environment answers every turn, also one that makes no sense; where it is "
            "late, a larger `tool_timeout`, more `procs`, or `shared = True` for an MCP server"
        )
        self.guard = RewardGuard(name, MAX_FAILED, mesh.origin, what="environment", remedy=remedy)
        self._closing: set[asyncio.Task[None]] = set()

    async def driver(self, tokenizer: ChatTokenizer) -> Driver:
        """What plays trajectories with the tokens of this tokenizer.

        Raises:
            RunError: the environment does not tell its tools.
        """
        try:
            reply = await self.call(0, self.mesh, Request(key="", op="tools", seconds=60.0))
        except Crash as crash:
            reply = Reply(error=str(crash))
        if reply.error:
            message = f"environment {self.name} does not tell its tools: {reply.error}"
            raise RunError(message, origin=self.mesh.origin)
        return Driver(self.environment, Bridge(tokenizer, reply.value), self.begin, self.failed)

    def begin(self) -> PoolSession:
        """A new trajectory, in the process that has the fewest."""
        rank = min(range(len(self._held)), key=lambda index: self._held[index])
        self._held[rank] += 1
        return PoolSession(self, rank, str(next(self._keys)))

    def lost(self) -> int:
        """Begin nothing until `restore`; how many trajectories were at the mesh."""
        self._alive.clear()
        for line in self._lines.values():
            line.close()
        return sum(self._held)

    def restore(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._alive.set()

    async def ready(self) -> Mesh:
        """The mesh, when there is one."""
        await self._alive.wait()
        return self.mesh

    async def call(self, rank: int, mesh: Mesh, request: Request) -> Reply:
        """Ask a process. Raises Crash where it is gone."""
        try:
            async with self._opening:
                if rank not in self._lines or not self._lines[rank].alive:
                    self._lines[rank] = await connect(await mesh.one(rank, "listen"))
            reply: Reply = await self._lines[rank].call(request)
        except OSError as error:
            raise Crash(f"its process is gone: {error}", lost=True) from error
        except ServiceError as error:
            if not error.died:
                raise
            if mesh is self.mesh:  # the keeper starts another, or ends the run
                self._alive.clear()
            raise Crash(error.failure.message, lost=True) from error
        return reply

    def ended(self, session: PoolSession, mesh: Mesh | None) -> None:
        """The trajectory is over: its object is closed, which nobody waits for."""
        self._held[session.rank] -= 1
        if mesh is None or mesh is not self.mesh:
            return
        request = Request(key=session.key, op="close", seconds=self.environment.tool_timeout)

        async def close() -> None:
            try:
                reply = await self.call(session.rank, mesh, request)
            except Crash:
                return  # nothing is left to close
            if reply.error and not reply.ended:
                self._warn("failed", f"could not close a trajectory: {reply.error}")

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def failed(self, cause: str, prompt: Prompt) -> None:
        """A trajectory crashed; too many end the run (GuardError)."""
        self._warn("failed", cause)
        self.guard.failed(cause, repr(prompt.text[-80:]))

    def late(self, cause: str) -> None:
        """A step took longer than `tool_timeout`, which is no failure: the policy plays on."""
        self._warn("took too long", f"{cause} (`tool_timeout`), which the policy was told")

    def _warn(self, what: str, text: str) -> None:
        """Say the first time, the tenth, the hundredth, ..."""
        self._told[what] += 1
        if str(count := self._told[what]).strip("0") == "1":
            times = "" if count == 1 else f" ({count} times by now)"
            text = f"environment {self.name} ({self.mesh.origin}) {what}{times}: {text}"
            self._events.emit("warning", service=self.name, text=text)


class PoolSession:
    """Implements `driver.Session`."""

    def __init__(self, client: EnvironmentClient, rank: int, key: str) -> None:
        self.rank, self.key = rank, key
        self._client = client
        self._mesh: Mesh | None = None

    async def reset(self, task: Task, seed: int) -> Start:
        self._mesh = await self._client.ready()
        reply = await self._ask(
            "reset", self._client.environment.tool_timeout, task=task, seed=seed
        )
        if reply.late:
            raise Crash(f"reset: {reply.error}")
        assert isinstance(reply.value, Start)
        return reply.value

    async def step(self, turn: Turn) -> Step:
        limit = self._client.environment.tool_timeout
        seconds = limit * max(1, len(turn.calls)) + (CALL_GRACE if turn.calls else 0.0)
        reply = await self._ask("step", seconds, turn=turn)
        if reply.late:
            self._client.late(reply.error)
            raise Late(reply.error)
        assert isinstance(reply.value, Step)
        self._client.guard.succeeded()
        return reply.value

    def close(self) -> None:
        self._client.ended(self, self._mesh)

    async def _ask(self, op: str, seconds: float, **more: Any) -> Reply:
        assert self._mesh is not None
        request = Request(key=self.key, op=op, seconds=seconds, **more)
        reply = await self._client.call(self.rank, self._mesh, request)
        if reply.error and not reply.late:
            raise Crash(f"{op}: {reply.error}", lost=reply.lost)
        return reply
