"""The services of a what-if: answers of models come from recorded steps, the rest is computed.

sample, logprobs, judges --recorded rows--> the values of the run
rewards, rubrics, functions --the other job--> new values
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.runs.compare import function_text
from forgedsl_runtime.data_types import Rollout, Sample
from forgedsl_runtime.endpoints import DropRollout, Score, ServiceFailure
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.recorded.columns import rollout_of
from forgedsl_runtime.recorded.files import Row
from forgedsl_runtime.rewards.loading import STANDARD
from forgedsl_runtime.rewards.worker import Item, Outcome, Recipe, call_reward, call_together, load
from forgedsl_runtime.services.reward import RewardClient
from forgedsl_runtime.tensor_calls import call_on_tensors
from forgedsl_runtime.tracebacks import described
from forgedsl_runtime.worker_process import interrupt

if TYPE_CHECKING:  # only `--train` has a trainer
    from forgedsl_runtime.services.trainer import TrainerClient

Key = tuple[int, int]
"""a completion: number of its group, and its number over all samplers of the group"""
OF_MODELS = ("judge", "endpoint", "scorer")
"""kinds of rewards that a model computes"""


class OwnRewards:
    """Computes rewards in this process; it has the interface of a reward pool."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._functions = load(recipe)
        kinds = {each.function if each.kind == "std" else each.kind
                 for each in recipe.rewards.values()}  # fmt: skip
        self._install = not kinds <= {"program", *STANDARD}
        """True if a reward may replace the handler of SIGALRM"""
        signal.signal(signal.SIGALRM, interrupt)

    async def submit(self, item: Item, *, first: bool = False) -> list[Outcome]:
        names, rollout, target = item
        return [await self._outcome(name, rollout, target) for name in names]

    async def _outcome(self, name: str, rollout: Rollout, target: Any) -> Outcome:
        reward, function = self._recipe.rewards[name], self._functions[name]
        if reward.concurrency is not None:
            return await call_together(function, rollout, target, reward)
        if reward.kind != "program":
            return call_reward(partial(function, rollout, target), reward)
        try:  # an expression of the job file always ends: no time limit
            return Outcome(value=function(rollout, target))
        except Exception as error:
            return Outcome(error=described(error))

    def at_once(self, name: str) -> Callable[[Rollout, Any], float | None] | None:
        """Return a function that computes a reward; its result is None if the reward fails or is no
        finite number. Return None if the reward is asynchronous."""
        reward, function = self._recipe.rewards[name], self._functions[name]
        if reward.concurrency is not None:
            return None

        def program(rollout: Rollout, target: Any) -> float | None:
            try:
                return _finite(function(rollout, target))
            except Exception:  # a failed score, which the rubric drops or replaces as in a run
                return None

        def bounded(rollout: Rollout, target: Any) -> float | None:
            call = partial(function, rollout, target)
            return _finite(call_reward(call, reward, install=self._install).value)

        return program if reward.kind == "program" else bounded


def _finite(value: Any) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


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
    """Implements the calls of forgedsl_runtime.endpoints that the nodes of a group make. `rows` are
    the rows that `run` recorded of the step to recompute. Models in `live` are called; all other
    models are answered from `rows`."""

    def __init__(
        self, run: spec.Job, job: spec.Job, folder: Path, program: ModuleType,
        live: Mapping[str, TrainerClient] | None = None,
    ) -> None:  # fmt: skip
        self._job, self._live = job, live or {}
        self.failures: asyncio.Queue[ServiceFailure] = asyncio.Queue()
        self.rows: dict[Key, Row] = {}
        self._program = program
        self._rewards = RewardClient(job, {}, program, EventLog())
        own = [name for name, reward in job.rewards.items() if reward.kind not in OF_MODELS]
        self._own = OwnRewards(Recipe.of(job, str(folder), own))
        pool: Any = self._own
        for name in job.rewards:
            self._rewards.judge(name, pool if name in own else RecordedReward(self, name))  # type: ignore[arg-type]
        self._recorded = unchanged(run, job) | (job.rewards.keys() - own)
        """rewards whose recorded values are used"""
        self._at_once = {n: call for n in own if (call := self._own.at_once(n)) is not None}
        self._monitors = tuple(name for name, reward in job.rewards.items() if reward.monitor)
        self._parts: dict[str, tuple[str, ...]] = {}

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
        cut = None if rubric is None or not rollout.truncated else rubric.on_truncated
        row = self.rows[rollout.group, rollout.sibling]
        parts: dict[str, float] = {}
        for name in self._monitors if cut is not None else self._parts_of(target):
            value = row.get(f"part/{name}") if name in self._recorded else None
            if value is None and (compute := self._at_once.get(name)) is not None:
                value = compute(rollout, answer)
            if value is None:
                return None
            parts[name] = value
        if cut is not None or rubric is None:
            return Score(value=parts[target] if cut is None else cut, parts=parts)
        combine = getattr(self._program, rubric.function)
        return Score(value=float(combine({n: parts[n] for n in rubric.rewards})), parts=parts)

    def _parts_of(self, target: str) -> tuple[str, ...]:
        """Return the rewards of a score, then the monitors, each once."""
        if (known := self._parts.get(target)) is None:
            rubric = self._job.rubrics.get(target)
            names = [target] if rubric is None else rubric.rewards
            known = self._parts[target] = tuple(dict.fromkeys([*names, *self._monitors]))
        return known

    async def call(self, node: spec.Node, args: dict[str, Any]) -> Any:
        return call_on_tensors(getattr(self._program, node.target), args)
