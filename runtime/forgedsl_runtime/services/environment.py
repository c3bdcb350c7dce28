"""Client of an environment's pool: places trajectories in processes and handles their failures.

    begin() -> Session --reset, step, close--> its object, in the process with the fewest sessions

If its process or mesh dies, a trajectory has crashed, and the driver runs it again. An environment
that fails too often ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

from forgedsl.environment import Start, Step, Task, Turn
from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.vllm_parsers import FORM
from forgedsl_runtime.agents.play import AgentDriver
from forgedsl_runtime.agents.session import Event, Terms
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.endpoints import ServiceError
from forgedsl_runtime.environments.bridge import Bridge, TokenizedObservation
from forgedsl_runtime.environments.connection import PoolRequest, bridge_request, connect
from forgedsl_runtime.environments.driver import (
    AnyDriver,
    Crash,
    Driver,
    Late,
    Limits,
    TokenizedStep,
)
from forgedsl_runtime.environments.process import TOKENIZER_NOT_SENT
from forgedsl_runtime.environments.worker import Reply
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.guards import RewardGuard
from forgedsl_runtime.upstream.monarch import Mesh
from forgedsl_runtime.worker_process import CallClient

MAX_FAILED = 0.25
"""fraction of the recent trajectories that may crash"""


class EnvironmentClient:
    """Client for all trajectories of one environment."""

    def __init__(
        self, name: str, environment: spec.Environment, mesh: Mesh, events: EventLog
    ) -> None:
        self.name, self.mesh, self.environment = name, mesh, environment
        self._events = events
        self._keys = itertools.count()
        self._held = [0] * mesh.size
        self._alive = asyncio.Event()
        self._alive.set()
        self._connections: dict[int, CallClient] = {}
        self._bridges: dict[str, PoolRequest] = {}
        """by driver: the bridge message that the processes get"""
        self._opening = asyncio.Lock()
        self._reported: Counter[str] = Counter()
        remedy = (
            "fix the environment: it must answer every turn, even a nonsensical one; if it is too "
            "slow, set a larger `tool_timeout` or more `procs`, or `shared = True` for an MCP "
            "server"
        )
        if environment.agent:
            remedy = (
                "fix the agent: it must not fail, whatever the policy writes. What it prints is in "
                "logs/ of the run folder"
            )
        self.guard = RewardGuard(name, MAX_FAILED, mesh.origin, what="environment", remedy=remedy)
        self._closing: set[asyncio.Task[None]] = set()

    async def driver(self, tokenizer: ChatTokenizer, model: str = "") -> AnyDriver[Any]:
        """Return a driver that plays trajectories of `model` with the tokens of this tokenizer.

        Raises:
            RunError: the environment cannot list its tools, or the model reads no chats.
        """
        if self.environment.agent:
            return self._agent_driver(tokenizer, model)
        try:
            reply = await self.call(0, self.mesh, PoolRequest("tools"))
        except Crash as crash:
            reply = Reply(error=str(crash))
        if reply.error:
            message = f"environment {self.name} cannot list its tools: {reply.error}"
            raise RunError(message, origin=self.mesh.origin)
        bridge, name = Bridge(tokenizer, reply.value), str(len(self._bridges))
        pickled, tokenizes = None, self.environment.history != "template"
        # The processes get the tokenizer only if they tokenize, or a parser of vLLM needs it.
        if tokenizes or bridge.tool_form.startswith(FORM):
            try:
                pickled = pickle.dumps(bridge)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                self._warn("failed", f"{TOKENIZER_NOT_SENT}: {error}")
        self._bridges[name] = sent = bridge_request(bridge, name, pickled, tokenizes=tokenizes)
        for connection in self._connections.values():
            connection.tell(tuple(sent))
        begin = partial(self.begin, name)
        return Driver(self.environment, bridge, begin, self.failed)

    def _agent_driver(self, tokenizer: ChatTokenizer, model: str) -> AgentDriver:
        origin, bridge, name = self.mesh.origin, Bridge(tokenizer), str(len(self._bridges))
        if not bridge.reads_chats:
            raise RunError(
                f"agent {self.name} sends messages, and model {model} has no chat template",
                origin=origin, remedy="set `chat_template` of the model",
            )  # fmt: skip
        try:
            self._bridges[name] = bridge_request(bridge, name, pickle.dumps(bridge))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            message = f"the tokenizer of {model} cannot be sent to agent {self.name}: {error}"
            raise RunError(message, origin=origin) from error

        def begin() -> AgentSession:
            return AgentSession(self, *self._place(), name, model)

        return AgentDriver(self.environment, bridge, begin, self.failed)

    def begin(self, bridge: str = "") -> PoolSession:
        """Start a trajectory in the process that has the fewest."""
        return PoolSession(self, *self._place(), bridge)

    def _place(self) -> tuple[int, str]:
        """Return the process that has the fewest trajectories, and the key of a new trajectory."""
        rank = min(range(len(self._held)), key=lambda index: self._held[index])
        self._held[rank] += 1
        return rank, str(next(self._keys))

    def lost(self) -> int:
        """Stop new calls until `restore`; return the number of trajectories on the mesh."""
        self._alive.clear()
        for connection in self._connections.values():
            connection.close()
        return sum(self._held)

    def restore(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._alive.set()

    async def ready(self) -> Mesh:
        """Wait until the mesh is up and return it."""
        await self._alive.wait()
        return self.mesh

    async def call(self, rank: int, mesh: Mesh, asked: PoolRequest) -> Any:
        """Send a request to a process and return its reply.

        Raises:
            Crash: the process is gone.
        """
        try:
            connection = self._connections.get(rank)
            if connection is None or not connection.alive:
                connection = await self._connection(rank, mesh)
            return await connection.call(tuple(asked))
        except OSError as error:
            raise Crash(f"its process has ended: {error}", collateral=True) from error
        except ServiceError as error:
            if not error.died:
                raise
            if mesh is self.mesh:  # the supervisor restarts it or ends the run
                self._alive.clear()
            raise Crash(error.failure.message, collateral=True) from error

    async def _connection(self, rank: int, mesh: Mesh) -> CallClient:
        async with self._opening:
            if rank not in self._connections or not self._connections[rank].alive:
                connection = await connect(await mesh.one(rank, "listen"), self._problem)
                self._connections[rank] = connection
                for bridge in self._bridges.values():
                    connection.tell(tuple(bridge))
            return self._connections[rank]

    def _problem(self, reply: Reply) -> None:
        self._warn("failed", reply.error)

    def tell_one(self, session: PoolSession | AgentSession, asked: PoolRequest) -> None:
        """Send a message about a trajectory, without waiting. If the connection is closed, the
        trajectory has ended, and nothing is sent."""
        connection = self._connections.get(session.rank)
        if connection is not None and connection.alive:
            connection.tell(tuple(asked))

    def ended(self, session: PoolSession | AgentSession, mesh: Mesh | None) -> None:
        """End a trajectory: close its object in the process, without waiting."""
        self._held[session.rank] -= 1
        if mesh is None or mesh is not self.mesh:
            return
        connection, asked = (
            self._connections.get(session.rank),
            tuple(PoolRequest("close", session.key)),
        )
        if connection is not None and connection.alive:
            connection.tell(asked)
            return

        async def close() -> None:
            with suppress(OSError, ServiceError):  # nothing is left to close
                (await self._connection(session.rank, mesh)).tell(asked)

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def failed(self, cause: str, prompt: Prompt) -> None:
        """Report a crashed trajectory.

        Raises:
            GuardError: too many have crashed.
        """
        self._warn("failed", cause)
        self.guard.failed(cause, repr(prompt.text[-80:]))

    def late(self, cause: str) -> None:
        """Report a step that took longer than `tool_timeout`. It is no failure: the policy plays
        on."""
        self._warn(
            "took too long",
            f"{cause} (`tool_timeout`); the policy got this error as the observation",
        )

    def tell(self, text: str) -> None:
        """Warn of a fact about all trajectories."""
        text = f"environment {self.name} ({self.mesh.origin}): {text}"
        self._events.emit("warning", service=self.name, text=text)

    def _warn(self, what: str, text: str) -> None:
        """Warn on the first, the tenth, the hundredth time, ..."""
        self._reported[what] += 1
        if str(count := self._reported[what]).strip("0") == "1":
            times = "" if count == 1 else f" ({count} times so far)"
            text = f"environment {self.name} ({self.mesh.origin}) {what}{times}: {text}"
            self._events.emit("warning", service=self.name, text=text)


class PoolSession:
    """A trajectory in a process of the pool; implements `driver.Session`."""

    def __init__(self, client: EnvironmentClient, rank: int, key: str, bridge: str) -> None:
        self.rank, self.key = rank, key
        self._client, self._bridge, self._chat = client, bridge, False
        self._mesh: Mesh | None = None

    async def reset(self, task: Task, seed: int) -> Start:
        self._mesh, self._chat = await self._client.ready(), task.messages is not None
        reply = await self._ask("reset", task, seed)
        if reply.late:
            raise Crash(f"reset: {reply.error}")
        assert isinstance(reply.value, Start)
        return reply.value

    async def step(self, turn: Turn) -> Step:
        reply = await self._ask("step", turn.text, turn.number)
        if isinstance(reply, Reply) and reply.late:
            self._client.late(reply.error)
            raise Late(reply.error)
        self._client.guard.succeeded()
        if isinstance(reply, Reply):
            assert isinstance(reply.value, Step)
            return reply.value
        *made, rewards = reply
        return TokenizedStep(rewards=rewards, tokenized=TokenizedObservation(*made))

    def close(self) -> None:
        self._client.ended(self, self._mesh)

    async def _ask(self, op: str, given: Any, number: int) -> Any:
        assert self._mesh is not None
        asked = PoolRequest(op, self.key, given, number, self._bridge, self._chat)
        reply = await self._client.call(self.rank, self._mesh, asked)
        if isinstance(reply, Reply) and reply.error and not reply.late:
            raise Crash(f"{op}: {reply.error}", collateral=reply.collateral)
        return reply


class AgentSession:
    """An agent in a process of the pool; implements `play.AgentSession`."""

    def __init__(
        self, client: EnvironmentClient, rank: int, key: str, bridge: str, model: str
    ) -> None:
        self.rank, self.key = rank, key
        self._client, self._bridge, self._model = client, bridge, model
        self._mesh: Mesh | None = None

    async def begin(self, task: Task, seed: int, limits: Limits) -> None:
        self._mesh = await self._client.ready()
        terms = Terms(
            model=self._model, sampling=limits.sampling, max_row_tokens=limits.max_row_tokens,
            rewrites=self._client.environment.history == "template",
        )  # fmt: skip
        await self._ask(PoolRequest("run", self.key, (task, terms), seed, self._bridge))

    async def events(self) -> list[Event]:
        reply = await self._ask(PoolRequest("events", self.key))
        events, notes = reply
        for note in notes:
            self._client.tell(note)
        event, last = events[-1]
        if event == "end" and not last.error:
            self._client.guard.succeeded()
        return list(events)

    def answer(self, number: int, tokens: list[int], text: str, finish: str) -> None:
        self._client.tell_one(self, PoolRequest("answer", self.key, (number, tokens, text, finish)))

    def refuse(self, number: int, message: str, code: str) -> None:
        self._client.tell_one(self, PoolRequest("refuse", self.key, (number, message, code)))

    def close(self) -> None:
        self._client.ended(self, self._mesh)

    async def _ask(self, asked: PoolRequest) -> Any:
        assert self._mesh is not None
        reply = await self._client.call(self.rank, self._mesh, asked)
        if isinstance(reply, Reply) and reply.error:
            raise Crash(reply.error, collateral=reply.collateral)
        return reply
