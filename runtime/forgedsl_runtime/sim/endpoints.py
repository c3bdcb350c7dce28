"""Services of a simulated run: calls of the controller take simulated time, in one process.

The length of a completion and the times of its environment depend only on (seed, group, sibling),
so two settings can be compared on equal draws. The latency of a completion also depends on the
other requests in the engine. Failures and deaths follow the given faults. No text, token or
learning metric is made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forgedsl.lower.job import Job, Node
from forgedsl.sim.inject import Fault, faults_due
from forgedsl.sim.latency import (
    Latencies,
    completion_tokens,
    prompt_tokens,
    step_seconds,
    steps,
)
from forgedsl.sim.values import FAILS, KEEPS, REWARD, uniform
from forgedsl.types.flow import Role
from forgedsl_runtime.coalesce import Coalescer
from forgedsl_runtime.data_types import Batch, Prompt, Rollout, Sample, StepResult
from forgedsl_runtime.endpoints import (
    HeldOutLoss,
    RewardError,
    RolloutError,
    Score,
    ServiceFailure,
    SyncResult,
)
from forgedsl_runtime.sim.fleet import Fleet, Places

PURE = "rewards"


@dataclass(slots=True, kw_only=True)
class SimulatedRollout(Rollout):
    """A completion without tokens; `length` counts prompt and completion."""

    length: int

    @property
    def num_tokens(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCall:
    """Rewards evaluated in one call in `pool`; `limit` is in seconds."""

    names: tuple[str, ...]
    pool: str
    limit: float
    retries: int = 0
    drops: bool = True
    """the completion is dropped if the call fails after all retries"""


class SimEndpoints:
    """Simulated services; implements forgedsl_runtime.endpoints. Must be made inside the run's
    event loop."""

    def __init__(
        self, job: Job, latencies: Latencies, seed: int, faults: Sequence[Fault] = ()
    ) -> None:
        self.failures: asyncio.Queue[ServiceFailure] = asyncio.Queue()
        self._job, self._latencies, self._seed, self._faults = job, latencies, seed, tuple(faults)
        self.controller = Places()
        self._engine = {name: s.served_by or name for name, s in job.samplers.items()}
        own = {name: name for name in latencies.titans}
        own |= {name: s.served_by or name for name, s in job.trainers.items()}
        self.fleets = {
            name: _fleet(job, latencies, name)
            for name in latencies.engines
            if self._engine.get(name, name) == name
        }
        shared: dict[str, Places] = {}  # services that share GPUs or processes take turns
        for name in latencies.titans:
            group = next((group for group in job.colocate if own[name] in group), ())
            together = {each for each in own if own[each] in (*group, own[name])}
            shared[name] = next((shared[n] for n in together if n in shared), None) or Places()
        self.titans = shared
        self.trained = {node.target: 0 for node in job.nodes if Role.UPDATES in node.roles}
        """policy version by trained service"""
        self.scoring = dict.fromkeys(self.titans.keys() - self.trained.keys(), 0.0)
        """busy seconds of frozen models"""
        self._scorers = {
            name: Coalescer(self._scorer(name)) for name in self.titans if name not in self.trained
        }
        self.pools = {name: Places(count) for name, count in _pools(job).items()}
        self._calls = {name: _calls(job, (name,)) for name in job.rewards}
        self._calls |= {name: _calls(job, r.rewards) for name, r in job.rubrics.items()}
        self._row_tokens, self._rows = _supervised(job)
        self._slowness: dict[str, float] = {}
        self._failing: dict[str, float] = {}
        self._cursor: Counter[str] = Counter()
        self._draws: Counter[str] = Counter()
        """by node or target: number of random draws so far, used as the key of the next draw"""
        self._due(1)

    # ---- data

    async def draw(self, node: Node) -> Prompt | None:
        cursor = self._next(node, 1)
        return None if cursor is None else _prompt(cursor - 1)

    async def batches(self, node: Node) -> Batch | None:
        cursor = self._next(node, self._rows)
        if cursor is None:
            return None
        tokens = self._row_tokens
        sample = Sample(token_ids=[0] * tokens, num_prompt=0, mask=[True])
        return Batch(samples=[sample] * self._rows, cursor=cursor)

    async def pairs(self, node: Node) -> list[Rollout] | None:
        cursor = self._next(node, 1)
        if cursor is None:
            return None
        prompt = _prompt(cursor - 1)
        return [_simulated_rollout(prompt, sibling, self._row_tokens, (0, 0)) for sibling in (0, 1)]

    async def seek(self, node: Node, cursor: int) -> None:
        self._cursor[node.name] = cursor

    def _next(self, node: Node, rows: int) -> int | None:
        """Advance the reader of `node` by `rows`; return its position, or None if all epochs are
        read."""
        data, epochs = self._latencies.data.get(node.target), self._job.schedule.epochs
        at = self._cursor[node.name]
        if data is not None and epochs is not None and at >= epochs * data.rows:
            return None
        self._cursor[node.name] = at + rows
        return at + rows

    # ---- generators

    async def sample(self, node: Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        origin: Prompt = prompt if isinstance(prompt, Prompt) else prompt.prompt
        made = await self._complete(node.target, origin, origin.group, sibling, node.env)
        if self._failing and self._fails(node.target, origin.group, sibling):
            raise RolloutError("injected failure")
        return made

    async def evaluate_sample(self, name: str, prompt: Prompt, sibling: int, seed: int) -> Rollout:
        spec = self._job.evals[name]
        return await self._complete(spec.service, prompt, -1 - prompt.row, sibling, spec.env)

    async def _complete(
        self, service: str, prompt: Prompt, group: int, sibling: int, env: str | None
    ) -> Rollout:
        model, spec = self._latencies, self._latencies.engines[service]
        fleet = self.fleets[self._engine.get(service, service)]
        tokens = completion_tokens(model, service, self._seed, group, sibling)
        before = prompt_tokens(model, service, self._seed, group)
        turns, prefill = steps(model, env, self._seed, group, sibling), before * spec.prefill
        versions = []
        for number, seconds in enumerate(turns):  # later turns need no prefill: the cache has it
            each = tokens / len(turns)
            context = before / spec.siblings + number * each
            versions.append(await fleet.sample(each, 0.0 if number else prefill, context))
            if seconds:
                await asyncio.sleep(seconds)
        if model.control.rollout:
            await self.controller.work(model.control.rollout)
        tenant = self._engine.get(service, service) != service
        made = _simulated_rollout(
            prompt, sibling, round(before + tokens),
            (0, 0) if tenant else (versions[0], fleet.version),
        )  # fmt: skip
        made.group, made.truncated = group, tokens >= spec.tokens.most
        return made

    def _fails(self, target: str, group: int, sibling: int) -> bool:
        share = self._failing.get(target, 0.0)
        self._draws[target] += bool(share)
        key = (FAILS, group, sibling, self._draws[target])
        return bool(share) and uniform(self._seed, *key) < share

    # ---- rewards and functions

    async def score(self, node: Node, rollout: Any, target: Any) -> Score:
        return await self._score(node.target, rollout)

    async def evaluate_score(self, name: str, rollout: Rollout) -> Score:
        return await self._score(self._job.evals[name].score or "", rollout)

    async def _score(self, name: str, rollout: Rollout) -> Score:
        rubric = self._job.rubrics.get(name)
        calls = self._calls.get(name, ())
        if rubric is not None and rubric.on_truncated is not None and rollout.truncated:
            calls = ()
        work = [self._all_tries_fail(call, rollout) for call in calls]
        failed = await asyncio.gather(*work) if len(work) > 1 else [await each for each in work]
        for call, late in zip(calls, failed, strict=True):
            if late and call.drops:
                raise RewardError(call.names[0], "it failed, or took too long")
        return Score(value=0.0)

    async def _all_tries_fail(self, call: RewardCall, rollout: Rollout) -> bool:
        """Evaluate rewards, with retries; return True if every try failed. A try fails if one of
        its rewards fails or exceeds its time limit."""
        for attempt in range(1, call.retries + 2):
            total, failed = 0.0, False
            for name in call.names:
                spent = self._latencies.rewards[name].seconds
                key = (REWARD, rollout.group, rollout.sibling, attempt)
                u = uniform(self._seed, *key) if len(spent.points) != 1 else 0.5
                seconds = spent.at(u) * self._slowness.get(name, 1.0)
                failed |= seconds > call.limit
                total += min(seconds, call.limit)
            await self.pools[call.pool].work(total)
            for name in call.names if self._failing else ():
                failed |= self._fails(name, rollout.group, rollout.sibling)
            if not failed:
                return False
        return True

    async def call(self, node: Node, args: dict[str, Any]) -> Any:
        """Simulate a function: a filter keeps its share of groups, everything else returns
        zeros."""
        if Role.DECIDES in node.roles:
            self._draws[node.target] += 1
            keep = self._latencies.filters[node.target].keep
            return uniform(self._seed, KEEPS, self._draws[node.target]) < keep
        lists = [value for value in args.values() if isinstance(value, list)]
        return [0.0] * len(lists[0]) if lists else 0.0

    async def weight(self, node: Node, results: dict[str, float]) -> float:
        """Return weight 1: all simulated rows have the same weight."""
        return 1.0

    # ---- models

    async def logprobs(self, node: Node, rollouts: Sequence[Rollout | Sample]) -> list[list[float]]:
        tokens = sum(map(_length, rollouts))
        if node.target in self._scorers:
            await self._scorers[node.target].submit(tokens)
        else:
            titan = self._latencies.titans[node.target]
            await self.titans[node.target].work(titan.logprobs + tokens * titan.logprobs_token)
        return [[0.0] * len(each.mask) for each in rollouts]

    def _scorer(self, name: str) -> Any:
        """Return a scoring function for a frozen model: one call at a time; waiting requests are
        merged."""
        titan = self._latencies.titans[name]

        async def score(tokens: Sequence[int]) -> Sequence[None]:
            seconds = titan.logprobs + sum(tokens) * titan.logprobs_token
            self.scoring[name] += seconds
            await self.titans[name].work(seconds)
            return [None] * len(tokens)

        return score

    async def step(self, node: Node, batch: Batch) -> StepResult:
        titan = self._latencies.titans[node.target]
        beside = (sample for _, samples in batch.beside for sample in samples)
        tokens = sum(map(_length, [*batch.samples, *beside]))
        turn = self.trained[node.target]
        await self.titans[node.target].work(step_seconds(titan, self._seed, turn, tokens))
        self.trained[node.target] += 1
        self._draws[node.name] += 1
        self._due(self._draws[node.name] + 1)
        return StepResult(
            version=self.trained[node.target], loss=0.0, grad_norm=0.0, lr=0.0, tokens=tokens,
            metrics={}, kernel="none (simulation)",
        )  # fmt: skip

    async def abandon_step(self, node: Node) -> bool:
        return False

    async def sync(self, node: Node, version: int) -> SyncResult:
        titan = self._latencies.titans.get(node.target)
        if titan is not None:
            await self.titans[node.target].work(titan.publish)
        if (fleet := self.fleets.get(node.to or "")) is not None:
            await fleet.load(version)
        return SyncResult(bytes=0, transport="none", seconds=0.0)

    async def eval_prompts(self, name: str) -> list[Prompt]:
        return [_prompt(row) for row in range(self._held_out(name))]

    async def evaluate_loss(self, name: str) -> HeldOutLoss:
        """Simulate one forward pass of the trainer over the rows, as for log-probs."""
        service, count = self._job.evals[name].service, self._held_out(name)
        titan = self._latencies.titans[service]
        rate = titan.logprobs_token or titan.token / 3
        await self.titans[service].work(titan.logprobs + count * self._row_tokens / 2 * rate)
        return HeldOutLoss(value=0.0, samples=count)

    def _held_out(self, name: str) -> int:
        spec = self._job.evals[name]
        data = self._latencies.data.get(spec.dataset)
        rows = data.rows if data is not None else 1
        return min(rows, spec.limit or rows)

    # ---- the run

    async def save(
        self,
        step: int,
        controller_state: dict[str, Any],
        taken: asyncio.Event,
        replay: bytes | None,
    ) -> str:
        titans = self._latencies.titans
        await asyncio.gather(*(self.titans[n].work(titans[n].save) for n in self.trained))
        return ""

    async def amend(self, step: int, controller_state: dict[str, Any]) -> None:
        pass

    async def health(self) -> dict[str, str]:
        return {}

    # ---- faults

    def _due(self, step: int) -> None:
        """Begin and end the faults that are due before `step`."""
        begin, end = faults_due(self._faults, step)
        for fault in begin:
            self._do(fault, fault.value)
        for fault in end:
            self._do(fault, 0.0 if fault.kind == "fail" else 1.0)

    def _do(self, fault: Fault, value: float) -> None:
        target = fault.target
        if fault.kind == "fail":
            self._failing[target] = value
        elif target in self._latencies.rewards:
            self._slowness[target] = value
        elif fault.kind == "slow":
            self.fleets[target].slow(fault.index, value)
        elif target in self.fleets:
            self.fleets[target].kill(fault.index or 0)
        else:
            self.failures.put_nowait(ServiceFailure(service=target, origin="", message="it died"))


def _prompt(row: int) -> Prompt:
    return Prompt(group=-1, row=row, text="", token_ids=[0], target=None, cursor=row + 1)


def _simulated_rollout(
    prompt: Prompt, sibling: int, length: int, versions: tuple[int, int]
) -> SimulatedRollout:
    return SimulatedRollout(
        group=prompt.group, sibling=sibling, prompt=prompt, token_ids=[0], logprobs=[0.0],
        mask=[True], text="", truncated=False, version_min=versions[0], version_max=versions[1],
        started=0.0, finished=0.0, length=length,
    )  # fmt: skip


def _length(item: Rollout | Sample) -> int:
    """Return the number of tokens that a model reads."""
    if isinstance(item, Rollout):
        return item.num_tokens
    return int(item.sequence_fields.get("num_tokens", len(item.token_ids)))


def _fleet(job: Job, latencies: Latencies, name: str) -> Fleet:
    service = job.samplers.get(name)
    replicas = 1 if service is None else service.mesh.replicas
    in_turn = service is not None and service.route == "round_robin"
    return Fleet(latencies.engines[name], replicas, in_turn=in_turn)


def _pools(job: Job) -> dict[str, int]:
    """Return the number of processes by pool: pure functions share one pool, others have their
    own."""
    pure = [reward.procs for reward in job.rewards.values() if reward.is_pure]
    pools = {PURE: max(pure)} if pure else {}
    return pools | {n: r.concurrent_calls for n, r in job.rewards.items() if not r.is_pure}


def _calls(job: Job, names: Sequence[str]) -> tuple[RewardCall, ...]:
    """Return the calls of a score: all pure functions in one, each other reward by itself."""
    found, pure = [], tuple(name for name in names if job.rewards[name].is_pure)
    if pure:
        limit = max(job.rewards[name].timeout for name in pure)
        drops = all(job.rewards[name].on_error == "drop" for name in pure)
        found.append(RewardCall(names=pure, pool=PURE, limit=limit, drops=drops))
    for name in names:
        reward = job.rewards[name]
        if not reward.is_pure:
            found.append(
                RewardCall(
                    names=(name,), pool=name, limit=reward.timeout, retries=reward.retries,
                    drops=reward.on_error == "drop",
                )
            )  # fmt: skip
    return tuple(found)


def _supervised(job: Job) -> tuple[int, int]:
    """Return the tokens of a row, and the rows of an optimizer step over all ranks."""
    trainer = job.trainers.get(job.trained_service)
    return (1, 1) if trainer is None else (trainer.batch.seq_len, trainer.step_rows)
