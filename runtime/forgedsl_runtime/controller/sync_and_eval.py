"""Weight transfers to samplers and evaluations, after each optimizer step.

    step done --start_due(step)--> sync to each sampler that is due, evals that are due
                                  `--> credits return, records get their evaluations

`versions.py` keeps the order per sampler. Every sampler starts from the trainer's weights, also in
a fresh run: the first transfer comes before the first completion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from forgedsl.lower.job import Node
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.evals import Evals
from forgedsl_runtime.controller.firing import demand
from forgedsl_runtime.controller.group_source import GroupSource
from forgedsl_runtime.controller.records import Records


class SyncsAndEvals:
    """Orders transfers and evaluations, and runs them in the task group of the run."""

    def __init__(
        self,
        context: Context,
        intakes: Sequence[GroupSource],
        records: Records,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._context = context
        self._intakes = intakes
        self._records = records
        self._tasks = tasks
        self._evals = Evals(context)
        evals = context.job.evals.values()
        self._measured = {spec.service for spec in evals if spec.loss is None}

    async def run_initial(self) -> None:
        """Bring the samplers to the trainer's version; run the evaluations that are due at this
        step."""
        for sync in self._context.flow.syncs:
            self._order_sync(sync)
        await self._context.versions.wait_until_idle()
        step = self._context.state.step
        for name in self.due_evals(step):
            if self._context.state.evaluated.get(name) == step:
                continue
            # The untrained model has no record. Its result goes to the record of the first step,
            # unless that step has an evaluation of its own. A resumed run may still hold the
            # record.
            record: int | None = step if self._records.has_record(step) else step + 1
            if record == step + 1 and name in self.due_evals(step + 1):
                record = None
            if record is not None:
                self._records.expect_eval(record, name)
            await self._order_eval(name, record=record)
        await self._wait_if_serial()

    async def start_due(self, step: int) -> None:
        """Start the syncs and evals that are due after `step`; wait for them if the schedule says
        so."""
        context = self._context
        last = step == context.job.schedule.steps
        for sync in context.flow.syncs:
            if step % sync.every != 0 and not (last and sync.to in self._measured):
                continue
            with context.meter.measure_idle():
                # Wait until this transfer has begun, because the next step replaces the weights
                # that it sends. An earlier transfer or an eval may delay its begin.
                await self._order_sync(sync).wait()
                if not sync.overlap:
                    await context.versions.wait_for_sync(sync.to or "")
        for name in self.due_evals(step):
            await self._order_eval(name, record=step)
        await self._wait_if_serial()

    async def run_final(self) -> None:
        """Finish running work, then evaluate the final weights if that was not done."""
        context, step = self._context, self._context.state.step
        await context.versions.wait_until_idle()
        missing = [n for n in context.job.evals if context.state.evaluated.get(n) != step]
        for sync in context.flow.syncs:
            behind = context.versions.served[sync.to or ""] != context.versions.trained[sync.target]
            if missing and behind and sync.to in self._measured:
                self._order_sync(sync)
        for name in missing:
            self._records.expect_eval(step, name)
            await self._order_eval(name, record=step)
        await context.versions.wait_until_idle()

    def due_evals(self, step: int) -> list[str]:
        """Return the evals due: before the first step, every `every` steps, and at a known last
        step."""
        evals = self._context.job.evals
        if step == self._context.job.schedule.steps:
            return list(evals)
        return [name for name, spec in evals.items() if step % spec.every == 0]

    async def _wait_if_serial(self) -> None:
        if self._context.job.schedule.mode == "sync":
            with self._context.meter.measure_idle():
                await self._context.versions.wait_until_idle()

    def _order_sync(self, sync: Node) -> asyncio.Event:
        """Order a transfer of the trainer's weights; return an event that is set when it has
        begun."""
        versions, step, begun = self._context.versions, self._context.state.step, asyncio.Event()
        work = partial(self._sync, sync, versions.trained[sync.target], step, begun)
        versions.order_sync(self._tasks, sync.to or "", work)
        return begun

    async def _sync(self, sync: Node, version: int, step: int, begun: asyncio.Event) -> None:
        context = self._context
        fields = {"service": sync.target, "to": sync.to, "version": version}
        begun.set()
        with context.events.span("sync", **fields) as end:
            result = await demand(sync, context.endpoints.sync(sync, version))
            end.update(bytes=result.bytes, transport=result.transport, transfer_s=result.seconds)
            end.update(publish_s=result.publish_seconds)
            end.update({"proved": result.proved} if result.proved else {})
            end.update({"changed": result.changed} if result.changed is not None else {})
        context.versions.served[sync.to or ""] = version
        context.meter.count_sync(sync.to or "", result)
        warnings = [context.proofs.record_sync(sync, result)]
        if context.recorder is not None and result.digests:
            warnings.append(context.recorder.record_weights(step, sync.target, result.digests))
        for warned in filter(None, warnings):
            context.events.emit("warning", service=sync.to, text=warned)
        context.meter.progress += 1
        for intake in self._intakes:
            intake.record_sync(sync, step)

    async def _order_eval(self, name: str, *, record: int | None) -> None:
        """Order an evaluation. One that samples runs after the transfers to its sampler. A loss
        runs at once on the trainer, which must not step before the loss is measured."""
        work = partial(self._eval, name, self._context.state.step, record)
        spec = self._context.job.evals[name]
        if spec.loss is None:
            self._context.versions.order_eval(self._tasks, spec.service, work)
            return
        with self._context.meter.measure_idle():
            await work()

    async def _eval(self, name: str, step: int, record: int | None) -> None:
        context = self._context
        spec = context.job.evals[name]
        if spec.loss is None:
            version = context.versions.served.get(spec.service, 0)
            result = await self._evals.run(name, version=version, step=step)
        else:
            version = context.versions.trained[spec.service]
            result = await self._evals.loss(name, version=version, step=step)
        context.state.evaluated[name] = step
        if result.value is not None:
            context.state.first.setdefault(name, (step, result.value))
        if record is not None:
            self._records.add_eval(record, result)
