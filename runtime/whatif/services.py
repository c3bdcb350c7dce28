"""The services of a what-if: answers of models come from recorded steps, the rest is computed.

sample, logprobs, judges --recorded rows--> the values of the run
rewards, rubrics, functions --the other job--> new values
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.runs.compare import function_text
from forgedsl.runtime.data_types import Rollout, Sample
from forgedsl.runtime.endpoints import DropRollout, Score, ServiceFailure
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.recorded.columns import Row, rollout_of
from forgedsl.runtime.rewards.worker import Item, Outcome, Recipe, call_reward, load
from forgedsl.runtime.services.reward import RewardClient
from forgedsl.runtime.services.trainer import TrainerClient
from forgedsl.runtime.tensor_calls import call_on_tensors
from forgedsl.runtime.tracebacks import described

Key = tuple[int, int]
"""a completion: number of its group, and its number over all samplers of the group"""
OF_MODELS = ("judge", "endpoint", "scorer")
"""kinds of rewards that a model computes"""


class OwnRewards:
    """Computes rewards in this process; it has the interface of a reward pool."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._functions = load(recipe)

    async def submit(self, item: Item, *, first: bool = False) -> list[Outcome]:
        names, rollout, target = item
        return [self._call(name, rollout, target) for name in names]

    def value(self, name: str, rollout: Rollout, target: Any) -> float | None:
        """Return the value of a reward; None if it fails or is no number."""
        found = self._call(name, rollout, target)
        if found.error or not isinstance(found.value, int | float):
            return None
        return float(found.value) if math.isfinite(found.value) else None

    def _call(self, name: str, rollout: Rollout, target: Any) -> Outcome:
        reward = self._recipe.rewards[name]
        call = partial(self._functions[name], rollout, target)
        if reward.kind != "program":
            return call_reward(call, reward)
        try:  # an expression of the job file always ends: no time limit
            return Outcome(value=call())
        except Exception as error:
            return Outcome(error=described(error))


class RecordedReward:
    """Answers of a reward that a model computed in the run."""

    def __init__(self, services: RecordedServices, name: str) -> None:
        self._services, self._column = services, f"part/{name}"

    async def submit(self, item: Item, *, first: bool = False) -> list[Outcome]:
        row = self._services.rows[item[1].group, item[1].sibling]
        value = row.get(self._column)
        return [Outcome(error="not recorded") if value is None else Outcome(value=value)]


def unchanged(run: spec.Job, job: spec.Job) -> frozenset[str]:
    """Return the rewards whose recorded values can be reused: they are the same function in both
    jobs. Rewards in Python are never among them, since they may read other files or draw random
    numbers."""
    same = {"kind", "function", "args", "inputs", "positional"}

    def is_same(name: str) -> bool:
        old, new = run.rewards.get(name), job.rewards[name]
        if old is None or new.kind not in ("std", "program"):
            return False
        if old.model_dump(include=same) != new.model_dump(include=same):
            return False
        texts = [function_text(each.program, new.function) for each in (run, job)]
        return new.kind == "std" or texts[0] == texts[1]

    return frozenset(filter(is_same, job.rewards))


class RecordedServices:
    """Implements the calls of runtime/endpoints.py that the nodes of a group make. `rows` are the
    rows that `run` recorded of the step to recompute. Models in `live` are called; all other models
    are answered from `rows`."""

    def __init__(
        self, run: spec.Job, job: spec.Job, folder: Path, program: ModuleType,
        live: Mapping[str, TrainerClient] | None = None,
    ) -> None:  # fmt: skip
        self._job, self._unchanged, self._live = job, unchanged(run, job), live or {}
        self.failures: asyncio.Queue[ServiceFailure] = asyncio.Queue()
        self.rows: dict[Key, Row] = {}
        self._program = program
        self._rewards = RewardClient(job, {}, program, EventLog())
        own = [name for name, reward in job.rewards.items() if reward.kind not in OF_MODELS]
        self._own = OwnRewards(Recipe.of(job, str(folder), own))
        pool: Any = self._own
        for name in job.rewards:
            self._rewards.judge(name, pool if name in own else RecordedReward(self, name))  # type: ignore[arg-type]

    def use(self, rows: Sequence[Row]) -> None:
        """Answer with the rows of another step from now on."""
        self.rows = {(row["group"], row["sibling"]): row for row in rows}

    async def sample(self, node: spec.Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        row = self.rows.get((prompt.group, sibling))
        if row is None or row["edge"] != node.name:
            raise DropRollout("not recorded")
        return rollout_of(row)

    async def logprobs(
        self, node: spec.Node, rollouts: Sequence[Rollout | Sample]
    ) -> list[list[float]]:
        if (client := self._live.get(node.target)) is not None:
            return await (client.values if node.values else client.logprobs)(rollouts)
        found = []
        for rollout in rollouts:
            assert isinstance(rollout, Rollout)
            values = self.rows[rollout.group, rollout.sibling].get(f"tokens/{node.name}")
            if values is None:
                raise RunError(
                    f"`{node.name}`, {node.op} of {node.target}, is not recorded for completion "
                    f"{rollout.sibling} of group {rollout.group}",
                    origin=node.origin,
                )
            found.append(values)
        return found

    async def score(self, node: spec.Node, rollout: Any, target: Any) -> Score:
        return await self._rewards.score(node.target, rollout, target)

    def score_at_once(self, target: str, rollout: Rollout, answer: Any) -> Score | None:
        """Return the score of rubric or reward `target`, with recorded values of rewards that are
        unchanged; None if a reward has no value: then call `score`, which handles failures."""
        if rollout.fixed is not None:
            return None
        rubric = self._job.rubrics.get(target)
        names = [target] if rubric is None else [*rubric.rewards]
        cut = None if rubric is None or not rollout.truncated else rubric.on_truncated
        row = self.rows[rollout.group, rollout.sibling]
        parts: dict[str, float] = {}
        watched = [name for name, reward in self._job.rewards.items() if reward.monitor]
        for name in dict.fromkeys([*(names if cut is None else ()), *watched]):
            known = name in self._unchanged or self._job.rewards[name].kind in OF_MODELS
            value = row.get(f"part/{name}") if known else None
            if value is None and self._job.rewards[name].kind not in OF_MODELS:
                value = self._own.value(name, rollout, answer)
            if value is None:
                return None
            parts[name] = value
        if cut is not None or rubric is None:
            return Score(value=parts[target] if cut is None else cut, parts=parts)
        combine = getattr(self._program, rubric.function)
        return Score(value=float(combine({n: parts[n] for n in names})), parts=parts)

    async def call(self, node: spec.Node, args: dict[str, Any]) -> Any:
        return call_on_tensors(getattr(self._program, node.target), args)
