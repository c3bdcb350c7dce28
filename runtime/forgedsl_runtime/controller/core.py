"""The controller: executes `Job.nodes` over the endpoints until the steps or the data end.

    GroupSource (draw, fire) --batch--> assemble --> step --> sync, eval, checkpoint --+
        ^                                                                              |
        `------------- credits, when samplers have pulled the new weights -------------'

All work runs as tasks of one asyncio task group: groups of completions, weight transfers,
evaluations, the trainer loop, and watchers for failures and for an interrupt. The first failure
cancels the others. The run then ends with a RunError or GuardError and, if the trainer still
answers, a checkpoint. Asynchronous schedules let the trainer go on while transfers and evaluations
run; synchronous ones wait for each.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn

from forgedsl.errors import GuardError, RunError
from forgedsl.lower.job import Job, Node
from forgedsl_runtime.controller.assembly import Assembled, assemble, choose_examples
from forgedsl_runtime.controller.checkpoint_writer import CheckpointWriter
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.firing import Firing, demand
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.controller.group_source import GroupSource, Pool
from forgedsl_runtime.controller.records import Records
from forgedsl_runtime.controller.stores import packed, unpack
from forgedsl_runtime.controller.sync_and_eval import SyncsAndEvals
from forgedsl_runtime.data_types import StepResult
from forgedsl_runtime.endpoints import (
    CheckpointError,
    Endpoints,
    ServiceError,
    ServiceFailure,
    seed_of,
)
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.group import GroupState
from forgedsl_runtime.guards import (
    FAILURE_SECONDS,
    INTERRUPT_SECONDS,
    LAST_SAVE_SECONDS,
    SAVE_SECONDS,
    DeadlinePassed,
    FailureGuard,
    NonFiniteError,
    NonFiniteGuard,
    deadline,
)
from forgedsl_runtime.operations.registry import operation_of
from forgedsl_runtime.proofs.watch import Proofs
from forgedsl_runtime.recorded.write import Recorder, recorder_of
from forgedsl_runtime.state import ControllerState
from forgedsl_runtime.step_metrics import (
    Meter,
    Record,
    batch_record,
    finite,
    replay_record,
    step_record,
)
from forgedsl_runtime.versions import Versions

MIN_FAILURES_IN_A_ROW = 16
CAUSE_SECONDS = 5.0
"""seconds to wait for a report that another service died, before blaming this one"""
SAVE_MARGIN, SAVE_PART = 1.5, 0.25
"""time reserved for a checkpoint: SAVE_MARGIN times the duration of the last one, and at least
SAVE_PART of the time left"""
COLLECT = (1_000_000, 100, 100)
"""thresholds of the garbage collector during a run. Objects in flight are acyclic: 16,000
completions leave 153 that only the collector can free. With Python's default thresholds it took
half of the controller's processor time, with 100,000 a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run that did not fail."""

    ended: Literal["steps", "data", "interrupted"]
    step: int
    versions: dict[str, int]
    checkpoint: str | None
    """path of the newest checkpoint; None if an interrupt could not wait for the step in
    progress"""


class StepAbandoned(Exception):
    """A step was abandoned; the weights are those before it."""


def _failures(job: Job) -> int:
    """Return how many failures in a row end a run."""
    return max(MIN_FAILURES_IN_A_ROW, 2 * job.schedule.credits)


class _Stop(Exception):
    """Ends the task group of a run whose outcome is known."""


class Controller:
    """One run of a job. `state` is the controller state of a checkpoint to resume from. Completions
    are recorded in the folder `record_to`, if there is one and the job asks for it.

    Example:
        controller = Controller(job, endpoints, events)
        loop.add_signal_handler(signal.SIGINT, controller.interrupt)
        outcome = await controller.run()
    """

    _until: float | None = None
    """loop time at which the scheduler will kill the run"""
    _step_at: tuple[Node, float] | None = None
    """the step in progress and its start, as long as it has changed no weights"""
    _step_s = 0.0
    """seconds that the last step took"""

    def __init__(
        self,
        job: Job,
        endpoints: Endpoints,
        events: EventLog,
        *,
        state: dict[str, Any] | None = None,
        changed_data: bool = False,
        replay: bytes | None = None,
        record_to: Path | None = None,
        interrupt_seconds: float = INTERRUPT_SECONDS,
    ) -> None:
        self._job = job
        self._endpoints = endpoints
        self._events = events
        self._interrupt_seconds = interrupt_seconds
        self._flow = flow = analyse(job)
        self._state = ControllerState.from_json(state) if state else ControllerState()
        self._wall_before = self._state.wall_s
        trained = {node.target: self._state.versions.get(node.target, 0) for node in flow.steps}
        self._versions = Versions(trained, served={sync.to or "": 0 for sync in flow.syncs})
        step = self._state.step if state else None
        self._saving = CheckpointWriter(endpoints, events, flow.steps[0], step)
        self._context = context = Context(
            job=job, flow=flow, endpoints=endpoints, events=events, state=self._state,
            versions=self._versions, changed_data=changed_data, proofs=Proofs(job),
            meter=Meter(self._now), failures=FailureGuard(_failures(job)),
            recorder=recorder_of(job, flow, record_to, self._state.step),
        )  # fmt: skip
        self._meter = context.meter
        self._finite = NonFiniteGuard()
        self._firing = Firing(context)
        self._intakes = [GroupSource(context, source, self._firing) for source in flow.sources]
        for intake in self._intakes if state else ():
            intake.load(self._state.ledgers[intake.source.node.name], self._state.step)
        self._pool = Pool(context, self._intakes)
        found = (operation_of(s.node.op).store(context, s) for s in flow.recalls)
        self._buffers = {store.name: store for store in found if store is not None}
        for name in unpack(replay, self._buffers, self._state.replay):
            text = f"buffer {name} starts empty: its fields differ from those in the checkpoint"
            events.emit("warning", text=text)
        self._records = Records(
            events, job.evals, recorded=self._state.recorded, held=self._state.records,
            hold_last=job.schedule.steps is None and bool(job.evals),
        )  # fmt: skip
        self._interrupted = asyncio.Event()
        self._uninterruptible: asyncio.Task[None] | None = None
        self._stepping = False
        self._ended: Literal["steps", "data", "interrupted"] | None = None
        self._began = self._now()

    @property
    def proofs(self) -> Proofs:
        """Evidence that the run has gathered so far."""
        return self._context.proofs

    def interrupt(self, seconds: float | None = None) -> None:
        """Stop soon: draw nothing more, write a checkpoint, return from `run`. With `seconds`, the
        run must end within them; a step that takes too long is then abandoned."""
        self._until = None if seconds is None else self._now() + seconds
        self._interrupted.set()

    async def run(self) -> Outcome:
        """Run to the end.

        Raises:
            RunError: the run failed, or a guard stopped it (GuardError).
        """
        before = gc.get_threshold()
        gc.set_threshold(*COLLECT)
        try:
            return await self._run()
        finally:
            gc.set_threshold(*before)

    async def _run(self) -> Outcome:
        self._events.emit(
            "controller.start",
            step=self._state.step,
            recorded=self._records.recorded,
            resumed=self._saving.step is not None,
            first=self._state.first,
        )
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._train(), name="trainer")
                self._tasks.create_task(self._watch_failures(), name="failures")
                self._tasks.create_task(self._watch_interrupt(), name="interrupt")
        except BaseExceptionGroup as group:
            await self._close(group)
        finally:
            if self._context.recorder is not None:
                await self._context.recorder.end()
            for task in (self._uninterruptible, self._saving.release_task()):
                if task is not None:
                    task.cancel()
        assert self._ended is not None, "the trainer ends with an outcome"
        outcome = Outcome(
            ended=self._ended,
            step=self._state.step,
            versions=dict(self._versions.trained),
            checkpoint=None if self._stepping else self._saving.path,
        )
        self._events.emit("controller.end", ended=outcome.ended, step=outcome.step)
        return outcome

    # ---- the trainer

    async def _train(self) -> NoReturn:
        steps = self._job.schedule.steps
        self._lanes = SyncsAndEvals(self._context, self._intakes, self._records, self._tasks)
        await self._lanes.run_initial()
        for intake in self._intakes:
            wanted = partial(self._num_wanted, intake)
            self._tasks.create_task(intake.run(self._tasks, wanted), name=intake.source.node.name)
        self._meter.end_iteration()
        self._saving.at = self._now()
        while steps is None or self._state.step < steps:
            with self._meter.measure_idle():
                groups = await self._pool.next_batch(self._state.step)
            if groups is None:
                break
            await self._iterate(groups)
        await self._finish()
        raise _Stop

    async def _iterate(self, groups: Sequence[GroupState]) -> None:
        """Do one optimizer step, then syncs, evaluations and a checkpoint if they are due."""
        await self._saving.check()
        ages = {group.id: self._pool.ages(group) for group in groups}
        drawn = [each for b in self._buffers.values() for each in b.draw(self._state.step)]
        groups = [*groups, *(group for group, _ in drawn)]
        await self._firing.batch(groups)
        batches = {node.name: assemble(self._flow, node, groups, ages) for node in self._flow.steps}
        for assembled in batches.values():
            assembled.replayed = [age for group, age in drawn if not group.abandoned]
        await self._run_uninterrupted(self._commit(groups, batches))
        await self._lanes.start_due(self._state.step)
        if self._save_due():
            await self._run_uninterrupted(self._save(SAVE_SECONDS))

    def _save_due(self) -> bool:
        steps, seconds = self._job.checkpoint.every, self._job.checkpoint.every_s
        if steps is not None:
            return self._state.step % steps == 0
        return seconds is not None and self._now() - self._saving.at >= seconds

    async def _commit(self, groups: Sequence[GroupState], batches: dict[str, Assembled]) -> None:
        """Do the step, then update ledgers, buffers and records."""
        self._step_at, start = (self._flow.steps[0], self._now()), self._now()
        results: dict[str, StepResult] = {}
        for node in self._flow.steps:
            results[node.name] = await self._step(node, batches[node.name])
            self._step_at = None
        self._step_s = self._now() - start
        self._state.step += 1
        for intake in self._intakes:
            mine = [group for group in groups if group.source is intake.source]
            intake.consume(mine, self._state.step)
        for buffer in self._buffers.values():
            buffer.put(groups)
        if self._context.recorder is not None:
            await self._record_samples(self._context.recorder, groups, batches, results)
        record = self._record(batches, results)
        for name in self._lanes.due_evals(self._state.step):
            self._records.expect_eval(self._state.step, name)
        self._records.add(record)

    async def _run_uninterrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that must not stop halfway when the run is cancelled; `_settle` waits for it."""
        self._uninterruptible = asyncio.create_task(work)
        await asyncio.shield(self._uninterruptible)

    async def _step(self, node: Node, assembled: Assembled) -> StepResult:
        batch = assembled.batch
        parts = [batch.samples, *(samples for _, samples in batch.beside)]
        if not all(parts):
            raise RunError(f"step {node.name} got a batch without samples", origin=node.origin)
        for sample in chain.from_iterable(parts):
            sample.sequence_fields.setdefault("num_steps", float(self._state.step))
        step, service = self._state.step + 1, node.target
        batch.epochs, batch.minibatches = node.epochs, node.minibatches
        batch.seed = seed_of(self._job.seed, step)
        examples = choose_examples(assembled.completions, self._job.logging.samples)
        before = self._versions.trained[service]
        with self._events.span("step", step=step, service=service, version=before) as end:
            self._stepping = True
            result = await demand(node, self._endpoints.step(node, batch))
            self._stepping = False
            if result.left:
                raise StepAbandoned(f"step {step} did not end in time and was abandoned")
            end.update(
                version=result.version,
                groups=batch.groups,
                rewards=batch.rewards,
                ages=batch.ages,
                examples=examples,
                metrics=finite(result.metrics),
                **finite(
                    {
                        "loss": result.loss,
                        "grad_norm": result.grad_norm,
                        "lr": result.lr,
                        "tokens": result.tokens,
                        "skipped": result.skipped,
                        "kernel": result.kernel,
                    }
                ),
            )
        self._finite.check(node, result, step, self._job.services[service].on_nan)
        self._versions.trained[service] = result.version
        if warned := self._context.proofs.record_step(node, result):
            self._events.emit("warning", service=service, text=warned)
        return result

    async def _record_samples(
        self,
        recorder: Recorder,
        groups: Sequence[GroupState],
        batches: dict[str, Assembled],
        results: dict[str, StepResult],
    ) -> None:
        """Record the completions of the step that was just done."""
        made = {name: assembled.batch for name, assembled in batches.items()}
        origins = {name: assembled.origins for name, assembled in batches.items()}
        if said := await recorder.record(self._state.step, groups, made, results, origins):
            self._events.emit("warning", text=said)

    def _record(self, batches: dict[str, Assembled], results: dict[str, StepResult]) -> Record:
        """Make the metrics record. A flow may have several `step` nodes: fields of the first have
        plain names, fields of the others begin with the name of their node: `critic/loss`."""
        (first, *others) = self._flow.steps
        assembled = batches[first.name]
        times = self._meter.end_iteration()
        record: Record = {
            "step": self._state.step,
            **step_record(results[first.name]),
            **batch_record(
                assembled.batch,
                assembled.scores_by_group,
                [rollout.truncated for rollout, _ in assembled.completions],
            ),
            **times,
            "tokens_per_s": results[first.name].tokens / max(times["step_s"], 1e-9),
            "wall_s": self._wall(),
        }
        if self._buffers:
            record.update(replay_record(assembled.replayed, len(assembled.batch.groups)))
            record["replay/held"] = sum(map(len, self._buffers.values()))
        for name, values in sorted(assembled.parts.items()):
            record[f"reward/{name}"] = sum(values) / len(values)
        for node in others:
            fields = step_record(results[node.name])
            record.update({f"{node.name}/{name}": value for name, value in fields.items()})
        return record

    async def _finish(self) -> None:
        """Write the last checkpoint while remaining tasks end, then run the last evaluation."""
        step, steps = self._state.step, self._job.schedule.steps
        self._ended = "data" if steps is None or step < steps else "steps"
        if step == 0:
            raise GuardError(
                "the data ended before the first step: no group was left to train on",
                origin=self._flow.sources[0].node.origin,
                remedy="check the dataset, its filters and rewards",
            )
        if self._saving.asked != step:
            await self._run_uninterrupted(self._save(SAVE_SECONDS))
        await self._lanes.run_final()
        await self._saving.end()
        self._records.flush()
        if self._job.evals:  # a resumed run finds these results and does not evaluate again
            await self._endpoints.amend(step, self._snapshot().to_json())

    # ---- ends

    def _num_wanted(self, intake: GroupSource) -> int:
        """Number of groups of a source that the remaining steps still need."""
        steps = self._job.schedule.steps
        if steps is None:
            return 1 << 62
        return (steps - self._state.step) * intake.source.quota

    async def _watch_failures(self) -> NoReturn:
        raise _failed(await self._endpoints.failures.get())

    async def _watch_interrupt(self) -> NoReturn:
        await self._interrupted.wait()
        self._events.emit("interrupt", step=self._state.step)
        self._ended = "interrupted"
        raise _Stop

    async def _close(self, group: BaseExceptionGroup) -> None:
        """Handle the end of all tasks: finish a known outcome, or find the cause of a failure and
        raise it."""
        errors = [error for error in _leaves(group) if not isinstance(error, _Stop)]
        if self._ended is None or len(errors) == len(_leaves(group)):
            await self._fail(errors)
        for error in errors:  # errors raised during cancellation
            self._events.emit("warning", message=f"{type(error).__name__}: {error}")
        if self._ended == "interrupted":
            await self._abandon_late_step()
            await self._settle(self._uninterruptible, self._seconds_left())
            await self._settle(self._saving.release_task(), self._seconds_left())
            self._records.flush()
            if not self._stepping and self._saving.step != self._state.step:
                await self._save(SAVE_SECONDS)
                await self._saving.end()

    def _seconds_left(self) -> float:
        """Seconds left until the run must end."""
        return (
            self._interrupt_seconds if self._until is None else max(0.0, self._until - self._now())
        )

    async def _abandon_late_step(self) -> None:
        """Abandon the step in progress if it would not end early enough to write a checkpoint."""
        if self._until is None or self._step_at is None or self._uninterruptible is None:
            return
        node, begin = self._step_at
        seconds = self._seconds_left() - max(
            SAVE_MARGIN * self._saving.took, SAVE_PART * self._seconds_left()
        )
        if begin + self._step_s <= self._now() + seconds:
            await asyncio.wait([self._uninterruptible], timeout=seconds)
        if self._step_at is not None and not self._uninterruptible.done():
            try:
                await self._endpoints.abandon_step(node)
            except ServiceError as error:
                self._events.emit(
                    "warning", message=(f"the step in progress could not be abandoned: {error}")
                )

    async def _settle(self, task: asyncio.Task[None] | None, seconds: float) -> None:
        """Wait for the step or checkpoint in progress; cancel it after `seconds`."""
        if task is None or (task is self._uninterruptible and task.done()):
            return
        try:
            async with deadline("the step or checkpoint in progress", seconds):
                await asyncio.wait([task])
        except DeadlinePassed as late:
            task.cancel()
            await asyncio.wait([task])
            self._events.emit("warning", message=f"{late}, so it is lost")
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, StepAbandoned):
                self._events.emit("notice", text=str(error))
                return
            self._events.emit("warning", message=f"{type(error).__name__}: {error}")

    async def _fail(self, errors: list[BaseException]) -> NoReturn:
        cause = await self._cause(errors)
        dead_trainer = getattr(cause, "service", "") in self._versions.trained
        for task in (self._uninterruptible, self._saving.release_task()):
            await self._settle(task, 0.0 if dead_trainer else FAILURE_SECONDS)
        self._records.flush()
        self._events.emit(
            "failure",
            service=getattr(cause, "service", ""),
            origin=getattr(cause, "origin", ""),
            message=f"{type(cause).__name__}: {cause}",
        )
        # After a failed checkpoint another one would fail too.
        hopeless = isinstance(cause, NonFiniteError | CheckpointError)
        spoiled = self._stepping or dead_trainer or hopeless
        if not spoiled and self._saving.step != self._state.step:
            try:
                await self._save(LAST_SAVE_SECONDS)
                await self._saving.end()
            except RunError as error:
                cause.add_note(
                    f"the checkpoint of step {self._state.step} was not written: {error}"
                )
                self._events.emit(
                    "warning", message=(f"the last checkpoint was not written: {error}")
                )
        self._events.emit("controller.end", ended="failed", step=self._state.step)
        raise cause

    async def _cause(self, errors: list[BaseException]) -> BaseException:
        """Return the first cause. When a process dies, services that talked to it fail too, and may
        report that before the death itself is reported."""
        found = [error for error in errors if isinstance(error, RunError)]
        for error in found:
            if isinstance(error, GuardError) or _is_death(error):
                return error
        if found and found[0].service:
            with suppress(TimeoutError):
                async with asyncio.timeout(CAUSE_SECONDS):
                    while not (failure := await self._endpoints.failures.get()).died:
                        pass
                return _failed(failure)
        return found[0] if found else errors[0]

    async def _save(self, seconds: float) -> None:
        state = self._snapshot().to_json()
        await self._saving.begin(self._state.step, state, seconds, packed(self._buffers))

    def _snapshot(self) -> ControllerState:
        return ControllerState(
            step=self._state.step, versions=dict(self._versions.trained),
            ledgers={i.source.node.name: i.state_dict() for i in self._intakes},
            evaluated=dict(self._state.evaluated), first=dict(self._state.first),
            recorded=self._records.recorded, records=self._records.held, wall_s=self._wall(),
            replay={name: len(buffer) for name, buffer in self._buffers.items()},
        )  # fmt: skip

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _wall(self) -> float:
        return self._wall_before + self._now() - self._began


def _failed(failure: ServiceFailure) -> RunError:
    error = RunError(
        f"service {failure.service} failed: {failure.message}",
        origin=failure.origin,
        service=failure.service,
    )
    error.__cause__ = ServiceError(failure, died=failure.died)
    return error


def _is_death(error: RunError) -> bool:
    return isinstance(error.__cause__, ServiceError) and error.__cause__.died


def _leaves(group: BaseExceptionGroup) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
