"""The stages of a simulated run, on simulated services and on simulated time.

    draws -> samplers -> rewards, log-probs, filters -> batch -> step -> weights, evals, checkpoint
      ^                                                                    |
      `----------------------------- credits ------------------------------'

The order of things is that of runtime/controller: `groups.py` holds the way of a group, this module
fires its stages, `training.py` has the trainer's loop and the lanes of transfers and evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forgedsl.lower.job import Job, Sampler
from forgedsl.sim.groups import Groups, Unit
from forgedsl.sim.inject import Fault
from forgedsl.sim.latency import Latencies, completion_tokens, prompt_tokens
from forgedsl.sim.scores import PACKET, PURE, Call, calls_of
from forgedsl.sim.services import Fleet, Pool, Request, Scorer
from forgedsl.sim.values import FAILS, KEEPS, REWARD, uniform
from forgedsl.sim.workload import Stage, Workload
from forgedsl.sim.world import Server, World

SAMPLE_TRIES = 2


class Stages:
    """Fires the stages of one simulated run on its services."""

    def __init__(
        self,
        job: Job,
        latencies: Latencies,
        steps: int | None,
        seed: int,
        faults: Sequence[Fault],
        load: Workload,
    ) -> None:
        self.world = world = World()
        self.load = load
        self._job = job
        self.latencies = latencies
        self.seed = seed
        self.steps = load.schedule.steps if steps is None else steps
        self.faults = tuple(faults)
        self.failing: dict[str, float] = {}
        self.controller = Server(world)
        self.fleets = {name: self._fleet(job, name) for name in latencies.engines}
        self.slowness: dict[str, float] = {}
        self._calls, sizes = calls_of(job, load)
        self.pools = {
            name: Pool(world, procs, PACKET[name == PURE], self._scored)
            for name, procs in sizes.items()
        }
        self.scorers = {
            name: Scorer(world, titan)
            for name, titan in latencies.titans.items()
            if name not in {node.target for node in load.steps}
        }
        stride = len(load.sources)
        self.groups = [
            Groups(world, source, stride, self._firing(i)) for i, source in enumerate(load.sources)
        ]
        self.evaluated: Callable[..., None]
        """takes the completions of evaluations"""

    # ---- services

    def sharing(self, name: str) -> set[str]:
        """The services on the GPUs of one."""
        return {other for group in self._job.colocate if name in group for other in group}

    def _fleet(self, job: Job, name: str) -> Fleet:
        service = job.services.get(name)
        replicas = service.mesh.replicas if service is not None else 1
        in_turn = isinstance(service, Sampler) and service.route == "round_robin"
        engine = self.latencies.engines[name]
        return Fleet(self.world, engine, replicas, in_turn=in_turn, done=self._sampled)

    # ---- stages

    def _firing(self, index: int) -> Any:
        stages = self.load.sources[index].stages

        def fire(unit: Unit, at: int, sibling: int | None) -> None:
            self._fire(self.groups[index], unit, stages[at], at, sibling)

        return fire

    def _fire(self, groups: Groups, unit: Unit, stage: Stage, at: int, sibling: int | None) -> None:
        if sibling is not None:
            if any(sibling in unit.dead.get(given, ()) for given in stage.inputs):
                groups.complete(unit, at, sibling, dead=True)
            elif stage.op == "sample":
                self._sample(groups, unit, stage, at, sibling, 1)
            elif stage.op == "score":
                self._score(groups, unit, stage, at, sibling)
            else:
                groups.complete(unit, at, sibling)
            return
        if any(self._too_few(groups, unit, given) for given in stage.inputs):
            groups.drop(unit, "too few completions")
        elif stage.op == "keep":
            self._keep(groups, unit, stage, at)
        elif stage.op == "logprobs":
            tokens = sum(self._tokens(groups, unit, at, s) for s in range(stage.width or 1))
            self.scorers[stage.target].call(tokens, lambda: self._all(groups, unit, at))
        else:
            self._all(groups, unit, at)

    def _too_few(self, groups: Groups, unit: Unit, at: int) -> bool:
        width = groups.stages[at].width
        return width is not None and len(groups.alive(unit, at)) < min(2, width)

    def _all(self, groups: Groups, unit: Unit, at: int) -> None:
        """A stage that works on the whole group is done with it."""
        stage = groups.stages[at]
        dead: set[int] = set()
        for given in stage.inputs:
            if groups.stages[given].width == stage.width:
                dead |= unit.dead.get(given, set())
        for sibling in range(stage.width or 1):
            groups.complete(unit, at, sibling, dead=stage.width is not None and sibling in dead)

    def _keep(self, groups: Groups, unit: Unit, stage: Stage, at: int) -> None:
        mask = groups.stages[stage.inputs[-1]]
        keep = self.latencies.filters[mask.target].keep
        if uniform(self.seed, KEEPS, unit.group, at) >= keep:
            groups.drop(unit, f"filter {mask.target}")
            return
        dead = unit.dead.get(stage.inputs[0], ())
        for sibling in range(stage.width or 1):
            groups.complete(unit, at, sibling, dead=sibling in dead)

    def _sample(
        self, groups: Groups, unit: Unit, stage: Stage, at: int, sibling: int, attempt: int
    ) -> None:
        fleet = self.fleets[stage.target]
        number = stage.offset + sibling
        tokens = completion_tokens(self.latencies, stage.target, self.seed, unit.group, number)
        prompt = prompt_tokens(self.latencies, stage.target, self.seed, unit.group)
        if at not in unit.tokens:
            unit.tokens[at] = [0.0] * (stage.width or 1)
        unit.tokens[at][sibling] = prompt + tokens
        if tokens >= fleet.spec.tokens.most:
            unit.cut.add((at, sibling))
        key = (groups, unit, at, sibling, attempt)
        fleet.sample(Request(key, tokens, prompt * fleet.spec.prefill, self.world.now))

    def _sampled(self, request: Request) -> None:
        """A completion leaves its engine; the controller takes it in."""
        rollout = self.latencies.control.rollout
        if rollout:
            self.world.at(self.controller.book(rollout), self._received, request)
        else:
            self._received(request)

    def _received(self, request: Request) -> None:
        if len(request.key) == 2:  # of an evaluation
            self.evaluated(*request.key)
            return
        groups, unit, at, sibling, attempt = request.key
        stage: Stage = groups.stages[at]
        chance = self.failing.get(stage.target, 0.0)
        number = stage.offset + sibling
        if chance and uniform(self.seed, FAILS, unit.group, number, attempt) < chance:
            if attempt < SAMPLE_TRIES and not unit.gone:
                self._sample(groups, unit, stage, at, sibling, attempt + 1)
            else:
                groups.complete(unit, at, sibling, dead=True)
            return
        if stage.synced and stage.trained:
            versions = unit.versions.setdefault(at, [0] * (stage.width or 1))
            versions[sibling] = request.version
        groups.complete(unit, at, sibling)

    def _score(self, groups: Groups, unit: Unit, stage: Stage, at: int, sibling: int) -> None:
        calls = self._calls[stage.target]
        if stage.target in self.load.untested and (stage.inputs[0], sibling) in unit.cut:
            calls = ()
        state = [len(calls), 0]  # calls that are out, calls that failed for good
        if not calls:
            groups.complete(unit, at, sibling)
        for call in calls:
            self._call(call, (call, 1, state, groups, unit, at, sibling))

    def _call(self, call: Call, key: tuple[Any, ...]) -> None:
        """One try of a reward; over its limit it ends as a failure."""
        unit: Unit = key[4]
        total, late = 0.0, False
        for name in call.names:
            spent = self.latencies.rewards[name].seconds
            u = 0.5
            if len(spent.points) != 1:
                u = uniform(self.seed, REWARD, unit.group, *key[5:], key[1])
            seconds = spent.at(u) * self.slowness.get(name, 1.0)
            late |= seconds > call.limit
            total += min(seconds, call.limit)
        self.pools[call.pool].call((*key, late), total)

    def _scored(self, key: tuple[Any, ...]) -> None:
        call, attempt, state, groups, unit, at, sibling, late = key
        chance = max((self.failing.get(name, 0.0) for name in call.names), default=0.0)
        failed = late or (
            chance and uniform(self.seed, FAILS, unit.group, sibling, attempt, at) < chance
        )
        if failed and attempt <= call.retries and not unit.gone:
            self._call(call, (call, attempt + 1, state, groups, unit, at, sibling))
            return
        state[0] -= 1
        state[1] += bool(failed and call.drops)
        if state[0] == 0:
            groups.complete(unit, at, sibling, dead=state[1] > 0)

    def unit_tokens(self, groups: Groups, unit: Unit) -> float:
        """What a step trains on: prompts and completions of the group that are left."""
        total = 0.0
        for at, stage in enumerate(groups.stages):
            if stage.trained or stage.op == "pairs":
                tokens = unit.tokens.get(at) or [float(self.load.row_tokens)] * (stage.width or 1)
                total += sum(tokens[s] for s in groups.alive(unit, at))
            elif stage.op == "batches":
                total += self.load.batch_tokens
        return total

    def eval_tokens(self, service: str, ident: int, number: int) -> float:
        return completion_tokens(self.latencies, service, self.seed, -1 - ident, number)

    def _tokens(self, groups: Groups, unit: Unit, at: int, sibling: int) -> float:
        """Prompt and completion of what a stage works on."""
        origin = groups.stages[at]
        while origin.op not in ("sample", "pairs", "batches"):
            origin = groups.stages[origin.inputs[0]]
        if origin.op != "sample":
            return float(self.load.row_tokens)
        return unit.tokens[groups.stages.index(origin)][sibling]
