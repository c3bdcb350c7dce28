"""Client of the reward pools: scores of rewards and rubrics, with retries and error policy."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.runtime.actors.reward import Item, Outcome
from forgedsl.runtime.coalesce import Coalescer
from forgedsl.runtime.endpoints import RewardError, Score
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.items import Rollout
from forgedsl.runtime.upstream.monarch import Mesh

PYTHON_BATCH = 8
"""calls of a Python reward that travel together; few, so that all processes get some"""


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
        self._failed: Counter[str] = Counter()
        self._job = job
        self._program = program
        self._queues = {name: self._queue(name, mesh) for name, mesh in mesh_by_reward.items()}

    async def score(self, name: str, rollout: Rollout, target: Any) -> Score:
        """The score of rubric or reward `name`.

        Raises:
            RewardError: a reward failed after its retries and the policy is to drop.
        """
        rubric = self._job.rubrics.get(name)
        if rubric is None:
            value = await self._reward(name, rollout, target)
            return Score(value=value, parts={name: value})
        if rollout.truncated and rubric.on_truncated is not None:
            return Score(value=rubric.on_truncated)
        values = await asyncio.gather(
            *(self._reward(reward, rollout, target) for reward in rubric.rewards),
            return_exceptions=True,
        )
        for value in values:
            if isinstance(value, RewardError) and rubric.on_error != "drop":
                return Score(value=float(rubric.on_error))
            if isinstance(value, BaseException):
                raise value
        parts = dict(zip(rubric.rewards, values, strict=True))
        return Score(value=float(getattr(self._program, rubric.function)(parts)), parts=parts)

    async def _reward(self, name: str, rollout: Rollout, target: Any) -> float:
        reward = self._job.rewards[name]
        tries = 1 + (reward.retries if reward.kind == "python" else 0)
        for _ in range(tries):
            outcome = await self._queues[name].submit((rollout, target))
            if outcome.value is not None and math.isfinite(outcome.value):
                return float(outcome.value)
        self._tell(name, outcome.error or f"returned {outcome.value}")
        if reward.on_error == "drop":
            raise RewardError(name, outcome.error or f"returned {outcome.value}")
        return float(reward.on_error)

    def _tell(self, name: str, error: str) -> None:
        """Say the first failure of a reward, the tenth, the hundredth, ..."""
        self._failed[name] += 1
        count = self._failed[name]
        if str(count).strip("0") == "1":
            origin = self._job.origins.get(name, "")
            times = "" if count == 1 else f" {count} times; the last"
            text = f"reward {name} ({origin}) failed{times}: {error}"
            self._events.emit("warning", reward=name, text=text)

    def _queue(self, name: str, mesh: Mesh) -> Coalescer[Item, Outcome]:
        ranks = itertools.cycle(range(mesh.size))
        python = self._job.rewards[name].kind == "python"

        async def call(items: Sequence[Item]) -> list[Outcome]:
            return await mesh.one(next(ranks), "score", name, list(items))

        return Coalescer(call, parallel=mesh.size, limit=PYTHON_BATCH if python else 4096)
