"""EnvironmentProcess: the actor's side of an environment process (worker.py)."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import replace
from functools import partial

from forgedsl.environment import Step, Turn
from forgedsl.errors import LaunchError
from forgedsl.tool_calls import DEFAULT, Call, Tools, calls_in
from forgedsl.vllm_parsers import FORM
from forgedsl_runtime.environments.bridge import Bridge, unpickled
from forgedsl_runtime.environments.connection import PoolRequest, Wire
from forgedsl_runtime.environments.program import POOL
from forgedsl_runtime.environments.worker import START_SECONDS, Reply, Request, ServedEnvironment
from forgedsl_runtime.temporary_files import kill_marked
from forgedsl_runtime.tracebacks import described
from forgedsl_runtime.worker_process import ProcessEnded, RestartingWorker, WorkerProcess

WORKER = "forgedsl_runtime.environments.worker"
TOKENIZER_NOT_SENT = "its process cannot tokenize observations, so the controller does"
CALL_GRACE = 0.5
"""seconds added to the time limits of the tools that a turn calls"""


class EnvironmentProcess(RestartingWorker):
    """Holds trajectories in one process at a time; if it ends, its trajectories are lost."""

    def __init__(self, served: ServedEnvironment) -> None:
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        served = replace(served, mark=self._mark)
        names = f"environment {served.name}"
        super().__init__(
            partial(WorkerProcess.start, WORKER, served, names=names, quiet=served.confined)
        )
        self._environment = served.environment
        self._bridges: dict[str, Bridge] = {}
        self._forms: dict[str, tuple[str, Tools]] = {}
        """by bridge: form and schemas of tool calls"""
        self._loading: dict[str, asyncio.Task[Bridge]] = {}
        """by name: bridges that are being loaded"""
        self._blamed: WorkerProcess | None = None
        """the last child whose end was counted as the fault of one trajectory; the other
        trajectories in it are then not at fault"""

    async def answer(self, asked: PoolRequest) -> tuple[Reply | Wire | None, bool]:
        """Answer a request. The second value tells the server whether to end after this answer;
        here it is always False. Observations are tokenized here, so that this does not delay other
        trajectories in the controller."""
        if asked.op == "bridge":
            return await self._receive_tokenizer(asked), False
        try:
            request = await self._request(asked)
        except Exception as unread:
            return Reply(error=f"its tool calls cannot be read: {described(unread)}"), False
        reply = await self.ask(request)
        if asked.op == "close":  # a close is answered only if it failed
            failed = bool(reply.error) and not reply.ended
            error = f"could not close a trajectory: {reply.error}"
            return (Reply(error=error) if failed else None), False
        step, bridge = reply.value, self._bridges.get(asked.bridge)
        if bridge is not None and isinstance(step, Step) and not step.done:
            limit = self._environment.max_observation
            try:
                made = bridge.tokenize(step.observation, limit, chat=asked.chat)
            except Exception:  # the driver tokenizes it then, and gets the error
                return reply, False
            return (*made, dict(step.rewards)), False
        return reply, False

    async def _receive_tokenizer(self, asked: PoolRequest) -> Reply | None:
        """Receive a tokenizer. If that fails, the controller tokenizes observations."""
        form, tools, tokenizes, pickled = asked.given
        self._forms[asked.bridge] = form, tools
        if pickled is None:
            return None
        loading = asyncio.create_task(asyncio.to_thread(unpickled, pickled))
        if form.startswith(FORM):
            self._loading[asked.bridge] = loading
        await asyncio.wait([loading])
        failed = loading.exception()
        if failed is not None:
            return Reply(error=f"{TOKENIZER_NOT_SENT}: {described(failed)}")
        if tokenizes:
            self._bridges[asked.bridge] = loading.result()
        return None

    async def _calls(self, asked: PoolRequest) -> tuple[Call, ...]:
        """Return the tool calls of a turn; wait until a parser of vLLM is loaded.

        Raises:
            RunError: it cannot be used.
        """
        form, tools = self._forms.get(asked.bridge, (DEFAULT, ()))
        if form.startswith(FORM):
            bridge = await self._loading[asked.bridge]
            return (await asyncio.to_thread(bridge.read_calls, asked.given, tools))[1]
        return calls_in(asked.given, form, tools)

    async def _request(self, asked: PoolRequest) -> Request:
        limit, op, key = self._environment.tool_timeout, asked.op, asked.key
        if op == "reset":
            return Request(key=key, op=op, seconds=limit, task=asked.given, seed=asked.number)
        if op == "step":
            calls = await self._calls(asked)
            turn = Turn(text=asked.given, calls=calls, number=asked.number)
            grace = CALL_GRACE if turn.calls else 0.0
            seconds = limit * max(1, len(turn.calls)) + grace
            return Request(key=key, op=op, seconds=seconds, turn=turn)
        return Request(key=key, op=op, seconds=START_SECONDS if op == "tools" else limit)

    def close(self) -> None:
        super().close()
        if self._environment.program is not None:
            kill_marked(f"{POOL}={self._mark}")

    async def ask(self, request: Request) -> Reply:
        """Send a request about a trajectory to the process."""
        try:
            child = await self.start()
        except LaunchError as error:
            return Reply(error=str(error), ended=True)
        found: Reply | ProcessEnded = await child.ask(request, request.seconds)
        if not isinstance(found, ProcessEnded):
            return found
        if self._environment.program is not None:  # children of programs may live on
            await asyncio.to_thread(kill_marked, f"{POOL}={self._mark}")
        collateral = not found.mine or child is self._blamed  # one call per process gets the blame
        if request.op != "close":  # a closed trajectory cannot be to blame
            self._blamed = child
        return Reply(error=found.cause, ended=True, collateral=collateral)
