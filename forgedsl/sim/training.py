"""The trainer's side of a simulated run: draws, steps, transfers of weights, evaluations, the end.

Per sampler there is one lane, as in runtime/versions.py: a transfer begins after the transfer and
the evaluations ordered before it, an evaluation after the last transfer ordered before it. The
trainer waits until the transfer that it ordered has begun.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from forgedsl.sim.groups import Groups, Unit
from forgedsl.sim.inject import Fault
from forgedsl.sim.result import Step
from forgedsl.sim.services import Request
from forgedsl.sim.stages import Stages
from forgedsl.sim.world import Process, Server, Signal

if TYPE_CHECKING:
    from forgedsl.lower.job import Eval, Node

MIN_ROOM = 64
"""completions of an evaluation in the making at once, at least"""


class Training:
    """Steps of one simulated run. `ended` is "" while it goes on."""

    def __init__(self, sim: Stages) -> None:
        self.sim = sim
        sim.evaluated = self.evaluated
        self.world = sim.world
        self.load = sim.load
        self.step = 0
        self.pulled_step = 0
        self.steps: list[Step] = []
        self.ended = ""
        self.servers = {node.target: Server(sim.world) for node in sim.load.steps}
        for name, scorer in sim.scorers.items():  # on the same GPUs they wait for each other
            for other in sim.sharing(name) & self.servers.keys():
                scorer.server = self.servers[other]
        self._pulse = Signal()
        self._drops_before = 0
        self._pulled = {sync.name: 0 for sync in sim.load.syncs}
        self._lanes: dict[str, list[Signal]] = {}
        """what has to end before the next transfer to a sampler may begin"""
        self._last_sync: dict[str, Signal] = {}
        self._evals: dict[int, list[Any]] = {}
        self._drawn: Counter[str] = Counter()
        self._open = self._drawing = False
        self._life = self._saved = 0.0
        for groups in sim.groups:
            groups.moved = self._moved

    def start(self) -> None:
        self._faults()
        self.world.spawn(self._train())

    # ---- the loop

    def _train(self) -> Process:
        for sync in self.load.syncs:
            self._order_sync(sync)
        yield from self._idle()
        yield from self._order_evals(0)
        yield from self._serial()
        self._open, self._life = True, self.world.now
        self._saved = self.world.now
        self._draw()
        turned = self.world.now
        while self.ended == "" and (self.sim.steps is None or self.step < self.sim.steps):
            waited = self.world.now
            units = self._next_batch()
            while units is None:
                yield self._wait()
                units = self._next_batch()
            idle = self.world.now - waited
            if not units:
                break
            yield from self._work(units)
            ages = self._ages(units)
            tokens = self._batch_tokens(units)
            self.step += 1
            for groups, mine in zip(self.sim.groups, units, strict=True):
                groups.consumed(mine, self.step)
            waited = self.world.now
            yield from self._after()
            idle += self.world.now - waited
            self._record(turned, idle, tokens, ages)
            turned = self.world.now
            if self._save_due():
                yield from self._save()
                self._saved = self.world.now
            self._faults()
        steps = self.sim.steps
        self.ended = "data" if steps is None or self.step < steps else "steps"

    def _work(self, units: list[list[Unit]]) -> Iterator[float]:
        """Log-probs before the step, and the steps themselves."""
        tokens = self._batch_tokens(units)
        for node in self.load.at_step:
            server = self.servers.get(node.target)
            titan = self.sim.latencies.titans[node.target]
            if server is not None:
                yield from server.work(titan.logprobs + tokens * titan.logprobs_token)
        for node in self.load.steps:
            titan = self.sim.latencies.titans[node.target]
            yield from self.servers[node.target].work(titan.step + tokens * titan.token)

    def _after(self) -> Process:
        last = self.step == self.sim.steps
        measured = {spec.service for spec in self.load.evals.values() if spec.loss is None}
        for sync in self.load.syncs:
            if self.step % sync.every and not (last and sync.to in measured):
                continue
            begun = self._order_sync(sync)
            yield begun
            if not sync.overlap:
                yield self._last_sync[sync.to or ""]
        yield from self._order_evals(self.step)
        yield from self._serial()

    def _serial(self) -> Process:
        if self.load.schedule.mode == "sync":
            yield from self._idle()

    def _idle(self) -> Process:
        """Wait until every lane is empty."""
        for lane in list(self._lanes.values()):
            for signal in list(lane):
                yield signal
        for signal in list(self._last_sync.values()):
            yield signal

    def _save_due(self) -> bool:
        """As the controller has it."""
        steps, seconds = self.load.checkpoint.every, self.load.checkpoint.every_s
        if steps is not None:
            return self.step % steps == 0
        return seconds is not None and self.world.now - self._saved >= seconds

    def _save(self) -> Iterator[float]:
        for name, server in self.servers.items():
            yield from server.work(self.sim.latencies.titans[name].save)

    def _record(self, turned: float, idle: float, tokens: float, ages: Counter[int]) -> None:
        drops = sum(groups.dropped.total() for groups in self.sim.groups)
        self.steps.append(
            Step(
                step=self.step,
                end=self.world.now,
                seconds=self.world.now - turned,
                idle=idle,
                tokens=tokens,
                ages=ages,
                dropped=drops - self._drops_before,
            )
        )
        self._drops_before = drops

    # ---- batches

    def _next_batch(self) -> list[list[Unit]] | None:
        """Groups by source; [] at the end of the data, None: not yet."""
        all_groups = self.sim.groups
        self._drop_stale()
        if all(groups.credits.ready() for groups in all_groups):
            return [groups.take() for groups in all_groups]
        over = [groups for groups in all_groups if groups.over]
        if any(not groups.waiting for groups in over):
            return []
        if over and all(g in over or g.credits.ready() for g in all_groups):
            return [g.take_rest() if g.over else g.take() for g in all_groups]
        return None

    def _wait(self) -> Signal:
        if self._pulse.fired:
            self._pulse = Signal()
        return self._pulse

    def _moved(self, *, ready: bool = False) -> None:
        if ready:
            self._life = self.world.now
        elif self._open and self.world.now - self._life > self.load.patience:
            self.ended = f"starved at step {self.step + 1}"
            return
        self._draw()
        if self._pulse.waiting:
            self.world.fire(self._pulse)

    def _draw(self) -> None:
        """Admit groups while there are credits, room, data, and steps that need them."""
        if not self._open or self._drawing:
            return
        self._drawing = True
        for groups in self.sim.groups:
            source = groups.source
            while not groups.ended and groups.can_draw():
                left = self._steps_left()
                if groups.open >= left * source.quota:
                    break
                if self._drawn[source.name] >= self._rows(source.target, source.name):
                    groups.ended = True
                    break
                self._drawn[source.name] += 1
                groups.draw()
        self._drawing = False

    def _steps_left(self) -> float:
        return math.inf if self.sim.steps is None else self.sim.steps - self.step

    def _rows(self, dataset: str, source: str) -> float:
        epochs = self.load.schedule.epochs
        data = self.sim.latencies.data.get(dataset)
        return math.inf if epochs is None or data is None else epochs * data.rows

    def _ages(self, units: list[list[Unit]]) -> Counter[int]:
        found: Counter[int] = Counter()
        for groups, mine in zip(self.sim.groups, units, strict=True):
            for unit in mine:
                found.update(self._unit_ages(groups, unit, self.step))
        return found

    def _unit_ages(self, groups: Groups, unit: Unit, step: int) -> list[int]:
        return [
            step - versions[sibling]
            for at, versions in unit.versions.items()
            for sibling in groups.alive(unit, at)
        ]

    def _drop_stale(self) -> None:
        schedule = self.load.schedule
        if schedule.max_policy_age is None or schedule.max_policy_age >= schedule.age_bound:
            return  # the bound is proved: nothing can be older
        for groups in self.sim.groups:
            for unit in list(groups.waiting.values()):
                if (
                    max(self._unit_ages(groups, unit, self.step), default=0)
                    > schedule.max_policy_age
                ):
                    groups.drop(unit, "stale")

    def _batch_tokens(self, units: list[list[Unit]]) -> float:
        return sum(
            self.sim.unit_tokens(groups, unit)
            for groups, mine in zip(self.sim.groups, units, strict=True)
            for unit in mine
        )

    # ---- lanes

    def _order_sync(self, sync: Node) -> Signal:
        """Order a transfer; the signal says that it has begun."""
        to, begun, done = sync.to or "", Signal(), Signal()
        before = self._lanes.pop(to, [])
        if to in self._last_sync:
            before.append(self._last_sync[to])
        self._last_sync[to] = done
        self.world.spawn(self._sync(sync, self.step, before, begun, done))
        return begun

    def _sync(
        self, sync: Node, step: int, before: list[Signal], begun: Signal, done: Signal
    ) -> Process:
        yield from before
        self.world.fire(begun)
        titan = self.sim.latencies.titans.get(sync.target)
        if titan is not None:
            yield from self.servers[sync.target].work(titan.publish)
        fleet = self.sim.fleets.get(sync.to or "")
        if fleet is not None:
            yield fleet.load(fleet.spec.load, step) - self.world.now
        self._pulled[sync.name] = step
        self.world.fire(done)
        for groups in self.sim.groups:
            if sync.name in groups.source.syncs:
                groups.credits.pulled(min(self._pulled[name] for name in groups.source.syncs))
        self._moved(ready=True)

    def _measure(self, spec: Eval) -> Iterator[float]:
        """A loss of held-out rows, for which the trainer stops."""
        data = self.sim.latencies.data.get(spec.dataset)
        rows = data.rows if data is not None else 1
        tokens = min(rows, spec.limit or rows) * self.load.row_tokens / 2
        titan = self.sim.latencies.titans[spec.service]
        work = titan.logprobs + tokens * (titan.logprobs_token or titan.token / 3)
        yield from self.servers[spec.service].work(work)

    def _order_evals(self, step: int) -> Process:
        for index, (name, spec) in enumerate(self.load.evals.items()):
            if step % spec.every == 0 or step == self.sim.steps:
                done = Signal()
                if spec.loss is not None:
                    yield from self._measure(spec)
                    continue
                after = [self._last_sync[spec.service]] if spec.service in self._last_sync else []
                self._lanes.setdefault(spec.service, []).append(done)
                self.world.spawn(self._eval(name, step * len(self.load.evals) + index, after, done))

    def _eval(self, name: str, ident: int, after: list[Signal], done: Signal) -> Process:
        yield from after
        spec = self.load.evals[name]
        rows = (
            self.sim.latencies.data[spec.dataset].rows
            if spec.dataset in self.sim.latencies.data
            else 1
        )
        count = spec.n * min(rows, spec.limit or rows)
        self._evals[ident] = [count, count, done, name]
        for _ in range(min(count, self._room(spec.service))):
            self._eval_sample(ident)
        yield done

    def _room(self, service: str) -> int:
        peers = [
            stage.slots * (stage.width or 1)
            for source in self.load.sources
            for stage in source.stages
            if stage.op == "sample" and stage.target == service
        ]
        return max(MIN_ROOM, *peers, 0)

    def _eval_sample(self, ident: int) -> None:
        state = self._evals[ident]
        state[0] -= 1
        service = self.load.evals[state[3]].service
        tokens = self.sim.eval_tokens(service, ident, state[0])
        fleet = self.sim.fleets[service]
        prefill = fleet.spec.prefill * fleet.spec.prompt.mean
        fleet.sample(Request(("eval", ident), tokens, prefill, self.world.now))

    def evaluated(self, _: str, ident: int) -> None:
        """One completion of an evaluation is back."""
        state = self._evals[ident]
        state[1] -= 1
        self._life = self.world.now
        if state[0] > 0:
            self._eval_sample(ident)
        elif state[1] == 0:
            self.world.fire(state[2])

    # ---- faults

    def _faults(self) -> None:
        """What begins or ends before the next step."""
        for fault in self.sim.faults:
            if fault.first == self.step + 1:
                self._begin(fault)
            if fault.last == self.step and fault.kind != "kill":
                self._end(fault)

    def _begin(self, fault: Fault) -> None:
        sim = self.sim
        if fault.kind == "fail":
            sim.failing[fault.target] = fault.value
        elif fault.kind == "kill":
            if fault.target in sim.fleets:
                sim.fleets[fault.target].kill(fault.index or 0)
            else:
                self.ended = f"{fault.target} died at step {self.step + 1}"
        elif fault.target in sim.latencies.rewards:
            sim.slowness[fault.target] = fault.value
        else:
            sim.fleets[fault.target].slow(fault.index, fault.value)

    def _end(self, fault: Fault) -> None:
        sim = self.sim
        if fault.kind == "fail":
            del sim.failing[fault.target]
        elif fault.target in sim.latencies.rewards:
            del sim.slowness[fault.target]
        else:
            sim.fleets[fault.target].slow(fault.index, 1.0)
