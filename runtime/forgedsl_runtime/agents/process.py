"""AgentProcess: the actor's side of a process of agents, and the HTTP endpoint that the agents
call.

    controller --run, events, answer, close--> AgentProcess --run, close--> worker.py: the agent
                                                    ^ HTTP                        |
                                                    `-----------------------------'

The endpoint is here and not in the agent's process, for two reasons. An agent that blocks its
process does not delay the answers of other trajectories. And no code of users runs in the process
that has the tokenizer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from forgedsl.agent import Model
from forgedsl.environment import Task
from forgedsl_runtime.agents.endpoint import Endpoint, freeze
from forgedsl_runtime.agents.session import Event, Session
from forgedsl_runtime.agents.tree import Tree
from forgedsl_runtime.environments.bridge import unpickled
from forgedsl_runtime.environments.connection import PoolRequest
from forgedsl_runtime.environments.process import EnvironmentProcess
from forgedsl_runtime.environments.worker import Reply, Request, ServedEnvironment
from forgedsl_runtime.tracebacks import described

MARGIN = 5.0
"""seconds added to an agent's deadline here. The controller ends the agent at the deadline itself;
this limit applies only if it does not"""
LONGEST = 86400.0
"""time limit of an agent without a deadline"""


class AgentProcess(EnvironmentProcess):
    """Agents in one process, and their endpoint. The controller gets one note for each request
    field that is ignored."""

    def __init__(self, served: ServedEnvironment) -> None:
        super().__init__(served)
        self.endpoint = Endpoint()
        self._sessions: dict[str, Session] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._reported: set[str] = set()
        self._notes: list[str] = []

    async def answer(self, asked: PoolRequest) -> tuple[Any, bool]:
        """Answer a request about a trajectory; see `PoolRequest`. `answer` and `refuse` have no
        reply."""
        op, session = asked.op, self._sessions.get(asked.key)
        if op == "run":
            return await self._run(asked), False
        if op == "events":
            if session is None:
                return Reply(error="its process was started anew", collateral=True), False
            return await self._events(session), False
        if op == "answer" and session is not None:
            session.answered(*asked.given)
        elif op == "refuse" and session is not None:
            session.refused(*asked.given)
        elif op == "close":
            if session is not None:
                self.endpoint.end(self._sessions.pop(asked.key))
            return await super().answer(asked)
        elif op not in ("answer", "refuse"):
            return await super().answer(asked)
        return None, False

    async def _receive_tokenizer(self, asked: PoolRequest) -> Reply | None:
        """Receive a tokenizer, without which no trajectory can begin."""
        loading = asyncio.create_task(asyncio.to_thread(unpickled, asked.given[-1]))
        self._loading[asked.bridge] = loading
        await asyncio.wait([loading])
        freeze()
        return None

    async def _run(self, asked: PoolRequest) -> Reply:
        """Begin a trajectory: open its session, start its agent."""
        task: Task
        task, terms = asked.given
        try:
            bridge = await self._loading[asked.bridge]
        except Exception as error:
            return Reply(error=f"its tokenizer cannot be loaded: {described(error)}")
        tree = Tree(bridge, rewrites=terms.rewrites)
        session = Session(terms, tree, self._note)
        self._sessions[asked.key] = session
        self.endpoint.begin(session)
        model = Model(url=self.endpoint.url, key=session.key, name=terms.model)
        limit = self._environment.deadline
        request = Request(
            key=asked.key, op="run", seconds=LONGEST if limit is None else limit + MARGIN,
            task=task, seed=asked.number, model=model,
        )  # fmt: skip
        running = asyncio.create_task(self._work(session, request))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return Reply()

    async def _work(self, session: Session, request: Request) -> None:
        reply = await self.ask(request)
        self.endpoint.end(session)
        session.ended(reply)

    async def _events(self, session: Session) -> tuple[list[Event], list[str]]:
        """Return what happened in a trajectory, and notes on its requests."""
        found = await session.events()
        notes, self._notes = self._notes, []
        return found, notes

    def _note(self, name: str, why: str) -> None:
        """Note a request field that is ignored, once for each field."""
        if name not in self._reported:
            self._reported.add(name)
            self._notes.append(f"a request has `{name}`, which is ignored: {why}")
