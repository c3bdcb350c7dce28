"""Code of a reward process: calls come over a socket, outcomes go back one by one.

    process.py --(number, Item)--> serve --(number, outcomes, last)--> process.py

A synchronous call runs on the main thread. A signal interrupts it at its time limit, also if it
sleeps or waits. Asynchronous calls share one event loop. Any exception of a call, SystemExit too,
is an error of that call. If a call exceeds the memory limit, the process ends after its answer
(`last`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.modules import load_module
from forgedsl_runtime.rewards.requests import Requests, counting
from forgedsl_runtime.tracebacks import described, line_of
from forgedsl_runtime.worker_process import (
    Interrupted,
    interrupt,
    loaded,
    receive,
    receive_work,
    send,
    serve_together,
    timeout_message,
)  # fmt: skip

Item = tuple[tuple[str, ...], Rollout, Any]
"""names of rewards, and the rollout and target for all of them"""
Function = Callable[[Rollout, Any], Any]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The value of a reward, or the reason why there is none. `ended`: its process has ended."""

    value: float | None = None
    error: str = ""
    seconds: float = 0.0
    ended: bool = False
    requests: Requests | None = None
    """HTTP requests made for this value, if any"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The rewards that a process serves, by name, and the job's module. `origins`: where they are
    declared. `confined`: the process must have no effects and prints nothing."""

    rewards: Mapping[str, spec.Reward]
    program: str
    job_dir: str
    origins: Mapping[str, str] = field(default_factory=dict)
    confined: bool = False

    @classmethod
    def of(cls, job: spec.Job, job_dir: str, names: Collection[str]) -> Recipe:
        rewards = {name: job.rewards[name] for name in names}
        return cls(rewards=rewards, program=job.program, job_dir=job_dir, origins=job.origins)

    def named(self, name: str) -> str:
        """Name a reward for messages: `reward tests (grade of grading.py, t.forge:12:8)`."""
        reward = self.rewards[name]
        path = (reward.path or "").removeprefix("inputs/")
        where = (f"{reward.function} of {path}" if path else "", self.origins.get(name, ""))
        return f"reward {name} ({', '.join(filter(None, where))})" if any(where) else name

    @property
    def memory(self) -> int | None:
        """Memory limit of the process: the largest limit of its rewards."""
        return max((r.memory for r in self.rewards.values() if r.memory), default=None)

    @property
    def concurrency(self) -> int | None:
        return max((r.concurrency for r in self.rewards.values() if r.concurrency), default=None)

    def limit(self, item: Item) -> float:
        """Return the longest time that all calls of an item may take."""
        return sum(self.rewards[name].timeout for name in item[0])


def main(number: int) -> None:
    """Serve over the inherited socket until it is closed."""
    import forgedsl_runtime.rewards.loading  # noqa: F401 not in the time limit of rewards

    recipe: Recipe
    stream, recipe = receive_work(number)
    if recipe.memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (recipe.memory, recipe.memory))
    try:
        if recipe.confined:
            from forgedsl_runtime.probes.confined import confine

            confine()
        functions = load(recipe)
    except LaunchError as error:
        send(stream, str(error))
        return
    loaded(stream)
    if recipe.concurrency is not None:
        asyncio.run(_serve_together(stream, recipe, functions))
    else:
        _serve(stream, recipe, functions)


def load(recipe: Recipe) -> dict[str, Function]:
    """Load the functions of the rewards.

    Raises:
        LaunchError: one of them cannot be loaded.
    """
    from forgedsl_runtime.rewards.loading import load_reward

    needed = any(reward.kind == "program" for reward in recipe.rewards.values())
    # The program imports torch for its functions of tensors, and that takes seconds. Its rewards
    # are plain Python.
    program = load_module("program", recipe.program if needed else "", late=("torch",))
    found: dict[str, Function] = {}
    for name, reward in recipe.rewards.items():
        try:
            found[name] = load_reward(reward, program, Path(recipe.job_dir))
        except LaunchError as error:
            raise LaunchError(f"{recipe.named(name)}: {error}") from error
    return found


def _serve(stream: socket.socket, recipe: Recipe, functions: Mapping[str, Function]) -> None:
    """Serve one call after the other."""
    signal.signal(signal.SIGALRM, interrupt)
    while True:
        try:
            number, (names, rollout, target) = receive(stream)
        except EOFError:
            return
        found = [
            call_reward(functools.partial(functions[n], rollout, target), recipe.rewards[n])
            for n in names
        ]
        last = any(_out_of_memory(outcome) for outcome in found)
        send(stream, (number, found, last))
        if last:
            os._exit(0)


def call_reward(
    function: Callable[[], Any], reward: spec.Reward, *, install: bool = True
) -> Outcome:
    """Call a reward within its timeout, in the main thread of a process. Without `install`,
    `interrupt` must be the handler of SIGALRM."""
    began = time.monotonic()
    try:
        if install:  # a library may have replaced the handler
            signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, reward.timeout)
        try:
            value = function()
            value = asyncio.run(value) if inspect.iscoroutine(value) else value
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        outcome = Outcome(value=value)
    except Interrupted:
        outcome = Outcome(error=timeout_message(reward.timeout))
    except BaseException as error:
        outcome = _failed(error, reward)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _serve_together(
    stream: socket.socket, recipe: Recipe, functions: Mapping[str, Function]
) -> None:
    async def answer(item: Item) -> tuple[list[Outcome], bool]:
        names, rollout, target = item
        found = [
            await call_together(functions[n], rollout, target, recipe.rewards[n]) for n in names
        ]
        return found, any(_out_of_memory(outcome) for outcome in found)

    await serve_together(stream, answer)


async def call_together(
    function: Function, rollout: Rollout, target: Any, reward: spec.Reward
) -> Outcome:
    """Call an asynchronous reward within its timeout."""
    began = time.monotonic()
    clock = asyncio.timeout(reward.timeout)
    try:
        with counting() as requests:
            async with clock:
                outcome = Outcome(value=await function(rollout, target))
    except BaseException as error:
        outcome = (
            Outcome(error=timeout_message(reward.timeout))
            if clock.expired()
            else _failed(error, reward)
        )
    outcome.seconds = time.monotonic() - began
    outcome.requests = requests if requests.made else None
    return outcome


def _failed(error: BaseException, reward: spec.Reward) -> Outcome:
    if isinstance(error, MemoryError):
        limit = "" if reward.memory is None else f" (`memory` is {reward.memory / 2**20:.0f} MiB)"
        return Outcome(error=f"MemoryError: the call needs more memory than is available{limit}")
    if not isinstance(error, Exception):
        return Outcome(error=f"{described(error)}: a reward must return, not end its process")
    return Outcome(error=described(error) + line_of(error, Path(reward.path or "?").name))


def _out_of_memory(outcome: Outcome) -> bool:
    return outcome.error.startswith("MemoryError")
