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
        queues = {
            id(mesh): self._queue(mesh, python=job.rewards[name].kind == "python")
            for name, mesh in mesh_by_reward.items()
        }
        self._queues = {name: queues[id(mesh)] for name, mesh in mesh_by_reward.items()}

    async def score(self, name: str, rollout: Rollout, target: Any) -> Score:
        """The score of rubric or reward `name`.

        Raises:
            RewardError: a reward failed after its retries and the policy is to drop.
        """
        rubric = self._job.rubrics.get(name)
        if rubric is None:
            single = (await self._rewards((name,), rollout, target))[name]
            if isinstance(single, RewardError):
                raise single
            return Score(value=single, parts={name: single})
        if rollout.truncated and rubric.on_truncated is not None:
            return Score(value=rubric.on_truncated)
        values = await self._all(rubric.rewards, rollout, target)
        parts: dict[str, float] = {}
        for name in rubric.rewards:
            value = values[name]
            if not isinstance(value, RewardError):
                parts[name] = value
            elif rubric.on_error == "drop":
                raise value
            else:
                return Score(value=float(rubric.on_error))
        return Score(value=float(getattr(self._program, rubric.function)(parts)), parts=parts)

    async def _all(
        self, names: Sequence[str], rollout: Rollout, target: Any
    ) -> dict[str, float | RewardError]:
        """The values of several rewards; those of one pool travel in one item."""
        pools: dict[int, list[str]] = {}
        for name in names:
            pools.setdefault(id(self._queues[name]), []).append(name)
        asked = [self._rewards(tuple(pool), rollout, target) for pool in pools.values()]
        # nobody else to wait for: no task
        answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        return {name: value for answer in answers for name, value in answer.items()}

    async def _rewards(
        self, names: tuple[str, ...], rollout: Rollout, target: Any
    ) -> dict[str, float | RewardError]:
        """The values of rewards in one pool, asked again for those that may be retried."""
        found: dict[str, float | RewardError] = {}
        tried = 0
        while names:
            outcomes = await self._queues[names[0]].submit((names, rollout, target))
            tried += 1
            again = []
            for name, outcome in zip(names, outcomes, strict=True):
                reward = self._job.rewards[name]
                if outcome.value is not None and math.isfinite(outcome.value):
                    found[name] = float(outcome.value)
                elif reward.kind == "python" and tried <= reward.retries:
                    again.append(name)
                else:
                    found[name] = self._failure(name, outcome)
            names = tuple(again)
        return found

    def _failure(self, name: str, outcome: Outcome) -> float | RewardError:
        """What stands for a value that could not be computed."""
        error = outcome.error or f"returned {outcome.value}"
        self._tell(name, error)
        on_error = self._job.rewards[name].on_error
        return RewardError(name, error) if on_error == "drop" else float(on_error)

    def _tell(self, name: str, error: str) -> None:
        """Say the first failure of a reward, the tenth, the hundredth, ..."""
        self._failed[name] += 1
        count = self._failed[name]
        if str(count).strip("0") == "1":
            origin = self._job.origins.get(name, "")
            times = "" if count == 1 else f" {count} times; the last"
            text = f"reward {name} ({origin}) failed{times}: {error}"
            self._events.emit("warning", reward=name, text=text)

    def _queue(self, mesh: Mesh, *, python: bool) -> Coalescer[Item, list[Outcome]]:
        ranks = itertools.cycle(range(mesh.size))

        async def call(items: Sequence[Item]) -> list[list[Outcome]]:
            scores: list[list[Outcome]] = await mesh.one(next(ranks), "score", list(items))
            return scores

        return Coalescer(call, parallel=mesh.size, limit=PYTHON_BATCH if python else 4096)
