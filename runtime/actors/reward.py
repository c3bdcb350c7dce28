"""RewardPool: reward functions in processes of their own, with a time limit for every call.

The calls of a request run on a thread, one after the other. A call that exceeds its limit is
interrupted by an exception raised inside it; one that sits in C code and does not react is left
behind with its thread (a daemon), and another takes over for the calls behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch.actor import concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl.runtime.actors.base import ForgeActor
from forgedsl.runtime.items import Rollout
from forgedsl.runtime.modules import load_module
from forgedsl.runtime.places import described

GRACE = 1.0
"""seconds an interrupted call has to end before its thread is left behind"""

Item = tuple[tuple[str, ...], Rollout, Any]
"""names of rewards, and the rollout and target that all of them judge"""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The value of a reward, or why there is none."""

    value: float | None = None
    error: str = ""


class Interrupted(BaseException):
    """Raised inside a reward call that has used up its time."""


@dataclass(slots=True)
class _Pass:
    """One walk over calls `first`, `first + 1`, ... on a thread; `at` is the call it is in."""

    functions: Mapping[str, Callable[[Rollout, Any], Any]]
    calls: Sequence[tuple[str, Rollout, Any]]
    outcomes: list[Outcome | None]
    at: int
    began: float = field(default_factory=time.monotonic)
    thread: int = 0

    def walk(self) -> None:
        self.thread = threading.get_ident()
        while self.at < len(self.calls):
            self.began = time.monotonic()
            outcome = self._call(*self.calls[self.at])
            self.outcomes[self.at] = outcome
            self.at += 1

    def _call(self, name: str, rollout: Rollout, target: Any) -> Outcome:
        try:
            value = self.functions[name](rollout, target)
            return Outcome(value=asyncio.run(value) if inspect.iscoroutine(value) else value)
        except Exception as error:
            return Outcome(error=described(error))


class RewardPool(ForgeActor):
    """Evaluates rewards of a job; each process of the mesh serves all of `names`."""

    def __init__(self, job: spec.Job, names: tuple[str, ...], job_dir: str) -> None:
        super().__init__()
        self.job = job
        self.names = names
        self.job_dir = Path(job_dir)

    @concurrent_endpoint
    async def setup(self) -> dict[str, Any]:
        """Load the reward functions."""
        return await self.set_up(self._setup)

    @concurrent_endpoint
    async def score(self, items: list[Item]) -> list[list[Outcome]]:
        """Apply the rewards of each item to its rollout; outcomes in the order of the names."""
        calls = [(name, rollout, target) for names, rollout, target in items for name in names]
        found: list[Outcome | None] = [None] * len(calls)
        at = 0
        while at < len(calls):
            walk = _Pass(self._functions, calls, found, at)
            at = await self._supervise(walk, _start(walk))
        outcomes = (o if o is not None else Outcome(error="not evaluated") for o in found)
        return [[next(outcomes) for _ in names] for names, _, _ in items]

    def _setup(self) -> dict[str, Any]:
        from forgedsl.runtime.rewards import load_reward

        program = load_module("program", self.job.program)
        self._functions = {
            name: load_reward(self.job.rewards[name], program, self.job_dir) for name in self.names
        }
        return {}

    async def _supervise(self, walk: _Pass, future: asyncio.Future[None]) -> int:
        """Wait for the walk; stop it at a call over its limit. Returns where to go on."""
        last = len(walk.calls) - 1
        while True:
            limit = self.job.rewards[walk.calls[min(walk.at, last)][0]].timeout
            left = walk.began + limit - time.monotonic()
            done, _ = await asyncio.wait({future}, timeout=max(left, 0.01))
            if done:
                await future
                return walk.at
            stuck = walk.at
            if time.monotonic() - walk.began < limit:
                continue  # it moved on to another call meanwhile
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(walk.thread), ctypes.py_object(Interrupted)
            )
            await asyncio.wait({future}, timeout=GRACE)
            if walk.outcomes[stuck] is None:
                walk.outcomes[stuck] = Outcome(error=f"no answer within {limit:g} s")
            return stuck + 1


def _start(walk: _Pass) -> asyncio.Future[None]:
    """Walk on a daemon thread; the future is done when it has returned."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def work() -> None:
        with contextlib.suppress(Interrupted):  # the supervisor goes on behind that call
            walk.walk()
        loop.call_soon_threadsafe(finish)

    threading.Thread(target=work, name="rewards", daemon=True).start()
    return future
