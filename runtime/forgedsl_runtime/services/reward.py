"""Client of the reward pools: scores of rewards and rubrics, with retries and error policy.

    score(rollout) --cache--> pool of each reward --tries--> Score, RewardError | guard: GuardError

Warnings name a reward that fails, is slow, or ends its process; `RewardGuard` ends a run whose
reward fails too often. Monitors (rewards that are only logged) are evaluated with every score of
the flow, and do not change the score.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from forgedsl.lower import job as spec
from forgedsl_runtime.coalesce import Coalescer
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.endpoints import RewardError, Score, ServiceError, ServiceFailure
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.guards import DeadlinePassed, RewardGuard, deadline
from forgedsl_runtime.rewards.process import GRACE
from forgedsl_runtime.rewards.requests import Requests
from forgedsl_runtime.rewards.worker import Item, Outcome

if TYPE_CHECKING:  # a what-if has rewards, and no meshes
    from forgedsl_runtime.services.judge import ServiceReward
    from forgedsl_runtime.upstream.monarch import Mesh

DEPTH = 2
"""number of calls of a synchronous Python reward that are sent to a process at a time: it works on
one, and has the next one ready"""
PURE_BATCH = 256
QUICK_SECONDS, QUICK_BATCH = 0.01, 8
"""calls of a synchronous Python reward that are sent together: as many as take QUICK_SECONDS by the
mean of the last ones, at most QUICK_BATCH. A message takes the controller 0.5 ms"""
OLDER, SHORTEST = 0.9, 1e-5
"""weight of the older calls in the mean of durations, and the least that the mean counts as"""
SLOW_SECONDS = 10.0
"""a longer call causes a warning"""
QUEUE_SECONDS = 60.0
"""a longer wait in the queue causes a warning: the rewards are the bottleneck"""
START_SECONDS = 300.0
"""time for a process to start, in addition to the time for its calls"""
CACHE_SIZE = 1 << 17
SHOWN = 80


@dataclass(slots=True)
class _Call:
    """The rewards of one rollout: inputs, durations, failures and retries."""

    rollout: Rollout
    target: Any
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    retried: list[str] = field(default_factory=list)
    requests: dict[str, Requests] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {"prompt": self.rollout.prompt.text, "response": self.rollout.text}
        shown["target"] = self.target
        return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())


class RewardPool:
    """Sends calls to the processes of one mesh. If the mesh dies, unfinished calls wait, and are
    sent again to the mesh that replaces it."""

    def __init__(
        self,
        mesh: Mesh,
        *,
        depth: int,
        limit: int,
        seconds: Callable[[Item], float],
        slow: Callable[[Sequence[Item]], None] | None = None,
        full: Callable[[int], None] = lambda waiting: None,
        quick: bool = False,
    ) -> None:
        """Make a pool. `seconds` gives the time limit of an item in a process. With `quick`, calls
        are sent together as long as they turn out to be quick; otherwise `limit` at a time."""
        self.mesh = mesh
        self._quick, self._mean = quick, QUICK_SECONDS
        self._depth, self._seconds = depth, seconds
        self._slow, self._full = slow, full
        self._since: dict[int, float] = {}
        self._free_slots = [depth] * mesh.size
        self._alive = asyncio.Event()
        self._alive.set()
        self._queue: Coalescer[Item, list[Outcome]] = Coalescer(
            self._call, parallel=mesh.size * depth, limit=limit
        )

    async def submit(self, item: Item, *, first: bool = False) -> list[Outcome]:
        self._since[id(item)] = time.monotonic()
        try:
            return await self._queue.submit(item, first=first)
        finally:
            del self._since[id(item)]

    def lost(self) -> int:
        """Stop sending until `restore`; return the number of unfinished calls on the mesh."""
        self._alive.clear()
        return self._queue.num_in_flight

    def restore(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._alive.set()

    async def _call(self, items: Sequence[Item]) -> list[list[Outcome]]:
        rank = max(range(len(self._free_slots)), key=lambda index: self._free_slots[index])
        self._free_slots[rank] -= 1
        if time.monotonic() - self._since.get(id(items[0]), math.inf) > QUEUE_SECONDS:
            self._full(self._queue.num_waiting)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(SLOW_SECONDS, self._slow, items) if self._slow else None
        try:
            while True:
                await self._alive.wait()
                mesh = self.mesh
                try:
                    answers = await self._ask(mesh, rank, items)
                    self._learn(answers)
                    return answers
                except ServiceError as error:
                    if not error.died:
                        raise
                    if mesh is self.mesh:  # the supervisor restarts it or ends the run
                        self._alive.clear()
        finally:
            self._free_slots[rank] += 1
            if timer is not None:
                timer.cancel()

    def _learn(self, answers: Sequence[Sequence[Outcome]]) -> None:
        """Send as many calls at a time from now on as these durations suggest."""
        if not self._quick:
            return
        for outcomes in answers:
            newest = sum(outcome.seconds for outcome in outcomes)
            if any(outcome.ended for outcome in outcomes):
                newest = max(newest, START_SECONDS)  # its process is started again
            self._mean = max(SHORTEST, OLDER * self._mean + (1 - OLDER) * newest)
        self._queue.limit = max(1, min(QUICK_BATCH, int(QUICK_SECONDS / self._mean)))

    async def _ask(self, mesh: Mesh, rank: int, items: Sequence[Item]) -> list[list[Outcome]]:
        """Send items to a process and return its answers. The process limits the time of each call;
        the limit here is longer, so if it passes, the process itself hangs."""
        own = [self._seconds(item) for item in items]
        other = QUICK_BATCH if self._quick else len(items)  # calls of another message before it
        longest = sum(own) + (self._depth - 1) * other * max(own) + START_SECONDS
        try:
            async with deadline(f"process {rank} of the pool", longest):
                answers: list[list[Outcome]] = await mesh.one(rank, "score", list(items))
                return answers
        except DeadlinePassed as late:
            failure = ServiceFailure(service=mesh.service, origin=mesh.origin, message=str(late))
            raise ServiceError(failure) from late


class RewardClient:
    """All rewards and rubrics of a job."""

    def __init__(
        self,
        job: spec.Job,
        mesh_by_reward: Mapping[str, Mesh],
        program: ModuleType,
        events: EventLog,
    ) -> None:
        self._events = events
        self._reported: Counter[tuple[str, str]] = Counter()
        self._job = job
        self._program = program
        self._monitors = tuple(name for name, reward in job.rewards.items() if reward.monitor)
        self._guards = {
            name: RewardGuard(
                name, 1.0 if reward.monitor else reward.max_failed, job.origins.get(name, "")
            )
            for name, reward in job.rewards.items()
        }
        self._cached: dict[tuple[Any, ...], float] = {}
        pools = {id(mesh): self._pool(name, mesh) for name, mesh in mesh_by_reward.items()}
        self._pools: dict[str, RewardPool | ServiceReward] = {
            name: pools[id(mesh)] for name, mesh in mesh_by_reward.items()
        }

    def pool(self, mesh: Mesh) -> RewardPool | None:
        """Return the pool that calls this mesh, or None."""
        pools = (pool for pool in self._pools.values() if isinstance(pool, RewardPool))
        return next((pool for pool in pools if pool.mesh is mesh), None)

    def judge(self, name: str, judge: ServiceReward) -> None:
        """Use a service of the run for reward `name`."""
        self._pools[name] = judge

    async def score(
        self, name: str, rollout: Rollout, target: Any, *, monitored: bool = True
    ) -> Score:
        """Return the score of rubric or reward `name`; evaluate the monitors too.

        Raises:
            RewardError: a reward failed after its retries, and its `on_error` is drop.
            GuardError: it fails too often.
        """
        if rollout.fixed is not None:
            return Score(value=rollout.fixed)
        rubric = self._job.rubrics.get(name)
        names = (name,) if rubric is None else rubric.rewards
        fixed = None if rubric is None or not rollout.truncated else rubric.on_truncated
        if fixed is not None:
            names = ()
        beside = [m for m in self._monitors if m not in names] if monitored else []
        call = _Call(rollout, target)
        values = await self._all([*names, *beside], call)
        parts = {n: v for n, v in values.items() if not isinstance(v, RewardError)}
        failed, retried = tuple(call.failed), tuple(call.retried)
        common: dict[str, Any] = {
            "parts": parts, "seconds": call.seconds, "failed": failed, "retried": retried,
            "requests": call.requests,
        }  # fmt: skip
        if fixed is not None:
            return Score(value=fixed, **common)
        error = next((v for n in names if isinstance(v := values[n], RewardError)), None)
        if error is None:
            mine = {n: parts[n] for n in names}
            if rubric is None:
                return Score(value=mine[name], **common)
            return Score(value=float(getattr(self._program, rubric.function)(mine)), **common)
        if rubric is not None and rubric.on_error != "drop":
            return Score(value=float(rubric.on_error), **common)
        error.failed, error.seconds, error.retried = failed, call.seconds, retried
        error.requests = call.requests
        raise error

    async def _all(self, names: Sequence[str], call: _Call) -> dict[str, float | RewardError]:
        """Return the values of several rewards; rewards of one pool are sent in one item."""
        pools: dict[int, list[str]] = {}
        for name in names:
            pools.setdefault(id(self._pools[name]), []).append(name)
        asked = [self._rewards(tuple(pool), call) for pool in pools.values()]
        # A single pool needs no task.
        answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        return {name: value for answer in answers for name, value in answer.items()}

    async def _rewards(self, names: tuple[str, ...], call: _Call) -> dict[str, float | RewardError]:
        """Return the values of rewards in one pool; failed Python rewards are retried."""
        found: dict[str, float | RewardError] = {}
        keys = {n: self._key(n, call) for n in names if self._job.rewards[n].cache}
        found.update({n: self._cached[key] for n, key in keys.items() if key in self._cached})
        names = tuple(n for n in names if n not in found)
        tried = 0
        while names:
            item = (names, call.rollout, call.target)
            # Retries go to the front of the queue. Otherwise a broken reward would be reported only
            # after every waiting call had failed once.
            outcomes = await self._pools[names[0]].submit(item, first=tried > 0)
            tried += 1
            again = []
            for name, outcome in zip(names, outcomes, strict=True):
                reward = self._job.rewards[name]
                if outcome.requests is not None:
                    call.requests.setdefault(name, Requests()).add(outcome.requests)
                call.seconds[name] = max(outcome.seconds, call.seconds.get(name, 0.0))
                if outcome.ended:
                    self._tell(
                        name,
                        "ended its process, which is started again",
                        outcome.error,
                        failed=True,
                    )
                    self._guards[name].record_process_end(
                        outcome.error, str(call), reward.concurrency or 1
                    )
                else:
                    self._guards[name].record_survival()
                error = _error(outcome)
                self._guards[name].record_call(error)
                if outcome.value is not None and not error:
                    found[name] = value = float(outcome.value)
                    self._guards[name].succeeded()
                    if name in keys:
                        self._remember(keys[name], value)
                elif reward.kind == "python" and tried <= reward.retries:
                    again.append(name)
                    call.retried.append(name)
                    if not outcome.ended:  # the end of a process was already reported
                        self._tell(name, "failed and is called again", error, failed=True)
                else:
                    call.failed.append(name)
                    found[name] = self._failure(name, outcome, call)
            names = tuple(again)
        return found

    def _key(self, name: str, call: _Call) -> tuple[Any, ...]:
        """Return the cache key: everything of a rollout that a reward can read, without group and
        sibling numbers, versions, times and log-probs. Judges and endpoints read only text."""
        rollout, prompt = call.rollout, call.rollout.prompt
        seen = (
            name,
            prompt.text,
            rollout.text,
            repr(call.target),
            repr(prompt.columns),
            rollout.others,
        )
        if self._job.rewards[name].kind in ("judge", "endpoint"):
            return seen
        return *seen, rollout.truncated, rollout.num_tokens, _digest(rollout)

    def _remember(self, key: tuple[Any, ...], value: float) -> None:
        if len(self._cached) >= CACHE_SIZE:
            del self._cached[next(iter(self._cached))]
        self._cached[key] = value

    def _failure(self, name: str, outcome: Outcome, call: _Call) -> float | RewardError:
        """Return the replacement for a value that could not be computed: an error or a fixed
        score."""
        error = _error(outcome)
        self._tell(name, "failed", error, failed=True)
        reward = self._job.rewards[name]
        self._guards[name].failed(error, str(call))
        return RewardError(name, error) if reward.on_error == "drop" else float(reward.on_error)

    def _tell(self, name: str, what: str, text: str, *, failed: bool = False) -> None:
        """Warn on the first, tenth, hundredth time, ... that something happens to a reward.
        `failed`: the text is the reason why it gave no value."""
        self._reported[name, what] += 1
        count = self._reported[name, what]
        if str(count).strip("0") == "1":
            times = "" if count == 1 else f" ({count} times so far)"
            cause = {"error": text} if failed else {}
            text = f"reward {name} ({self._job.origins.get(name, '')}) {what}{times}: {text}"
            self._events.emit("warning", reward=name, text=text, **cause)

    def _pool(self, name: str, mesh: Mesh) -> RewardPool:
        reward = self._job.rewards[name]

        def seconds(item: Item) -> float:
            return sum(self._job.rewards[one].timeout for one in item[0]) + GRACE

        if reward.is_pure:
            return RewardPool(mesh, depth=1, limit=PURE_BATCH, seconds=seconds)

        def slow(items: Sequence[Item]) -> None:
            text = f"no result for {SLOW_SECONDS:g} s (its timeout is {reward.timeout:g} s)"
            if self._guards[name].ends:
                text += ", which may include a restart of its process,"
            more = f" or one of {len(items) - 1} more" if len(items) > 1 else ""
            self._tell(name, "is slow", f"{text} for {_Call(*items[0][1:])}{more}")

        def full(waiting: int) -> None:
            more = "`procs` or `concurrency`" if reward.concurrency else "`procs`"
            text = f"a call waited {QUEUE_SECONDS:g} s in the queue, and {waiting} are waiting; "
            advice = self._guards[name].failure_summary or f"give it more {more}"
            self._tell(name, "is the bottleneck", text + advice)

        depth = reward.concurrency or DEPTH
        return RewardPool(
            mesh, depth=depth, limit=1, seconds=seconds, slow=slow, full=full,
            quick=reward.concurrency is None,
        )  # fmt: skip


def _error(outcome: Outcome) -> str:
    """Return why there is no finite value; "" if there is one."""
    if outcome.value is not None and math.isfinite(outcome.value):
        return ""
    return outcome.error or f"returned {outcome.value}"


def _digest(rollout: Rollout) -> bytes:
    """Return a digest of tokens and turns: keys that hold the tokens would need much memory."""
    seen = (
        rollout.token_ids, rollout.mask, rollout.row_starts, rollout.turns, rollout.ended,
        rollout.rewards, rollout.turn_rewards,
    )  # fmt: skip
    return hashlib.sha256(repr(seen).encode()).digest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}...{text[-SHOWN // 2 :]}"
