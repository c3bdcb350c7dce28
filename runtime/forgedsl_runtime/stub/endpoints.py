"""The endpoints of a rehearsal: the real clients and routing, over services that only sleep.

This module replaces rows, functions of the program and filters by stand-ins. Failures are
drawn from (seed, group, sibling, try), at the rates that the faults of the rehearsal set.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.lower.dataset_columns import read_by
from forgedsl.sim.inject import Fault, faults_due
from forgedsl.sim.latency import Engine, Latencies, completion_tokens, prompt_tokens, steps
from forgedsl.sim.values import FAILS, KEEPS, uniform
from forgedsl.types.flow import Role
from forgedsl_runtime.actors.stub_engine import StubRequest
from forgedsl_runtime.data_types import Prompt, Rollout, Sample
from forgedsl_runtime.endpoints import HeldOutLoss, RewardError, RolloutError, Score
from forgedsl_runtime.events import Event
from forgedsl_runtime.meshes import Fleet
from forgedsl_runtime.services.endpoints import MonarchEndpoints, as_prompt
from forgedsl_runtime.services.generator import GeneratorClient
from forgedsl_runtime.services.reward import RewardClient
from forgedsl_runtime.services.trainer import TrainerClient, tenants_of
from forgedsl_runtime.stub.data import StubReader
from forgedsl_runtime.stub.rehearsal import Rehearsal
from forgedsl_runtime.upstream.monarch import Mesh


class TurnSampling(spec.Sampling):
    """Sampling of a turn of a trajectory."""

    before: int = 0
    """tokens of the earlier turns"""


class StubClient(GeneratorClient):
    """Client that requests completions of a given length; `sampling.max_tokens` is that length.
    `times` are those of the service, if it is a tenant."""

    times: Engine | None = None

    def _request(
        self, ident: str, token_ids: list[int], sampling: spec.Sampling, seed: int, grades: Any
    ) -> StubRequest:
        tokens = sampling.max_tokens
        cut = tokens >= self.service.sampling.max_tokens
        before = sampling.before if isinstance(sampling, TurnSampling) else 0
        return StubRequest(
            id=ident, prompt=len(token_ids), tokens=tokens, truncated=cut,
            tenant=self.times, before=before,
        )  # fmt: skip


class _Program:
    """Stand-in for the functions of the job: every rubric is the mean of its rewards."""

    def __getattr__(self, name: str) -> Callable[[dict[str, float]], float]:
        return lambda parts: sum(parts.values()) / max(1, len(parts))


class StubEndpoints(MonarchEndpoints):
    """Endpoints over stub meshes."""

    def __init__(self, job: spec.Job, run_dir: Path, rehearsal: Rehearsal, **more: Any) -> None:
        super().__init__(job, run_dir, program=_Program(), record_batches=0, **more)  # type: ignore[arg-type]
        self._model = rehearsal.latencies
        self._seed = rehearsal.seed
        self._failing: dict[str, float] = {}
        self._masks = 0
        self._tries = 0

    def fail(self, target: str, share: float) -> None:
        """Let this fraction of the calls of a generator or reward fail from now on."""
        self._failing[target] = share

    async def sample(self, node: spec.Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        asked = as_prompt(prompt)
        rollout = await self._turns(node.target, asked, asked.group, sibling, seed, node.env)
        if self._fails(node.target, asked.group, sibling):
            raise RolloutError("injected failure")
        return rollout

    async def evaluate_loss(self, name: str) -> HeldOutLoss:
        """Simulate an eval of a loss: the trainer computes log-probs of the rows once; the value is
        0."""
        spec_ = self.job.evals[name]
        rows = self._model.data[spec_.dataset].rows
        count = min(rows, spec_.limit or rows)
        seq_len = read_by(self.job, spec_.dataset).seq_len
        row = Sample(token_ids=[0] * (seq_len // 2), num_prompt=1, mask=[True] * (seq_len // 2 - 1))
        await self.trainers[spec_.service].logprobs([row] * count)
        return HeldOutLoss(value=0.0, samples=count)

    async def evaluate_sample(self, name: str, prompt: Prompt, sibling: int, seed: int) -> Rollout:
        spec_ = self.job.evals[name]
        group = -1 - prompt.row
        return await self._turns(spec_.service, prompt, group, sibling, seed, spec_.env)

    async def _turns(
        self, service: str, prompt: Prompt, group: int, sibling: int, seed: int, env: str | None
    ) -> Rollout:
        """Sample a completion, or all turns of a trajectory; the drawn length is split evenly among
        turns."""
        client = self.samplers[service]
        length = completion_tokens(self._model, service, self._seed, group, sibling)
        waits = steps(self._model, env, self._seed, group, sibling)
        return await in_turns(
            waits,
            length,
            lambda n, old: self.complete(client, _long(client, n, old), prompt, sibling, seed),
        )

    async def score(self, node: spec.Node, rollout: Any, target: Any) -> Score:
        score = await self.rewards.score(node.target, rollout, target)
        rubric = self.job.rubrics.get(node.target)
        for name in rubric.rewards if rubric is not None else (node.target,):
            if self._fails(name, rollout.group, rollout.sibling):
                raise RewardError(name, "injected failure")
        return score

    async def call(self, node: spec.Node, args: dict[str, Any]) -> Any:
        """Stand in for a function: a filter keeps its share of groups, everything else returns
        zeros."""
        if Role.DECIDES in node.roles:
            self._masks += 1
            return uniform(self._seed, KEEPS, self._masks) < self._model.filters[node.target].keep
        lists = [value for value in args.values() if isinstance(value, list)]
        return [0.0] * len(lists[0]) if lists else 0.0

    async def weight(self, node: spec.Node, results: dict[str, float]) -> float:
        """Return weight 1: all rows of a rehearsal have the same weight."""
        return 1.0

    async def export(self, target: str) -> str:
        """Do nothing: there are no weights to export."""
        return ""

    def _fails(self, target: str, group: int, sibling: int) -> bool:
        share = self._failing.get(target, 0.0)
        self._tries += bool(share)
        return bool(share) and uniform(self._seed, FAILS, group, sibling, self._tries) < share


async def in_turns(
    waits: Sequence[float], length: float, complete: Callable[[float, int], Awaitable[Rollout]]
) -> Rollout:
    """Sample the turns of a trajectory, each with an equal part of `length`. After each turn, sleep
    for the time of the environment. `complete` gets the tokens of a turn and those of the turns
    before it."""
    made: list[Rollout] = []
    for seconds in waits:
        before = sum(len(turn.token_ids) for turn in made)
        made.append(await complete(max(1.0, length / len(waits)), before))
        if seconds:
            await asyncio.sleep(seconds)
    whole = made[-1]
    whole.token_ids = [token for turn in made for token in turn.token_ids]
    whole.logprobs = [value for turn in made for value in turn.logprobs]
    whole.mask = [mine for turn in made for mine in turn.mask]
    whole.version_min = made[0].version_min
    return whole


def _long(client: GeneratorClient, length: float, before: int) -> TurnSampling:
    changed = {"max_tokens": int(length), "before": before}
    return TurnSampling.model_construct(**{**dict(client.service.sampling), **changed})


def readers(job: spec.Job, rehearsal: Rehearsal) -> dict[str, StubReader]:
    """Return a reader for every dataset, with the prompt lengths of the generator that reads it."""
    model = rehearsal.latencies
    by_data: dict[str, str] = {
        spec_.dataset: spec_.service for spec_ in job.evals.values() if spec_.loss is None
    }
    roots: dict[str, str] = {}
    for node in job.nodes:
        if node.roles & {Role.PROMPTS, Role.PAIRS}:
            roots[node.name] = node.target
        elif Role.SAMPLES in node.roles and node.inputs[0].edge in roots:
            by_data[roots[node.inputs[0].edge]] = node.target
    return {
        name: StubReader(
            model.data[name].rows,
            _lengths(model, by_data.get(name), rehearsal.seed),
            job.schedule.epochs,
        )
        for name in job.datasets
    }


def _lengths(model: Latencies, service: str | None, seed: int) -> Callable[[int], float]:
    if service is None:
        return lambda row: 1.0
    return lambda row: prompt_tokens(model, service, seed, row)


async def build(
    job: spec.Job, fleet: Fleet, run_dir: Path, rehearsal: Rehearsal, events: Any
) -> StubEndpoints:
    """Connect a client to every mesh, and the faults to the steps."""
    trainers = {name: TrainerClient(mesh) for name, mesh in fleet.trainers.items()}
    endpoints = StubEndpoints(
        job,
        run_dir,
        rehearsal,
        datasets=readers(job, rehearsal),
        samplers={},
        trainers=trainers | tenants_of(job, fleet.trainers),
        rewards=RewardClient(job, fleet.rewards, _Program(), events),  # type: ignore[arg-type]
    )
    for name, meshes in fleet.samplers.items():
        client = StubClient(job.samplers[name], meshes, endpoints.report_failure)
        await client.start()
        endpoints.samplers[name] = client
    for name, service in job.samplers.items():
        if service.served_by is not None:
            client = StubClient(
                service, [], endpoints.report_failure, tenant=name,
                engine=endpoints.samplers[service.served_by],
            )  # fmt: skip
            client.times = rehearsal.latencies.engines[name]
            endpoints.samplers[name] = client
    events.subscribe(FaultInjector(rehearsal.faults, fleet, endpoints))
    return endpoints


class FaultInjector:
    """Starts and ends faults before the steps that they name. A fault without a step starts with
    the run."""

    def __init__(self, faults: Sequence[Fault], fleet: Fleet, endpoints: StubEndpoints) -> None:
        self._faults = tuple(faults)
        self._fleet = fleet
        self._endpoints = endpoints
        self._tasks: list[asyncio.Task[Any]] = []

    def __call__(self, event: Event) -> None:
        if event["kind"] == "controller.start":
            self._now(1)
        elif event["kind"] == "metrics":
            self._now(event["step"] + 1)

    def _now(self, step: int) -> None:
        begin, end = faults_due(self._faults, step)
        for fault in begin:
            self._do(fault, fault.value)
        for fault in end:
            self._do(fault, 0.0 if fault.kind == "fail" else 1.0)

    def _do(self, fault: Fault, value: float) -> None:
        if fault.kind == "fail":
            self._endpoints.fail(fault.target, value)
            return
        for mesh in self._meshes(fault):
            if fault.kind == "kill":
                for member in mesh.members:
                    os.kill(member["pid"], signal.SIGKILL)
            else:
                call = mesh.call("slow", fault.target, value)
                self._tasks.append(asyncio.ensure_future(call))

    def _meshes(self, fault: Fault) -> list[Mesh]:
        if fault.target in self._fleet.samplers:
            meshes = self._fleet.samplers[fault.target]
            first = 0 if fault.kind == "kill" else None
            index = first if fault.index is None else fault.index
            return meshes if index is None else [meshes[index]]
        if fault.target in self._fleet.trainers:
            return [self._fleet.trainers[fault.target]]
        return [self._fleet.rewards[fault.target]]
