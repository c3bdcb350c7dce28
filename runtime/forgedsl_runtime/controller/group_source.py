"""Draw groups and hand out batches: credits, window, refill, end of data, starvation.

    source --draw--> GroupState --Firing--> waiting --take--> batch of the trainer
              ^ credit                   | filter, failure, staleness
              `--------------------------'  the credit returns, another group is drawn

A group holds a credit from its draw until the sampler has weights that were trained on it. So
credits limit the groups in flight, and their policy age. With a window of w, a group may be
overtaken only by the w - 1 groups drawn right after it.
One `GroupSource` per source keeps the credits (`forgedsl.plan.credits`) and the ledger (`Ledger`);
the `Pool` assembles batches from one quota per source. The last batch at the end of the data may be
smaller: no group is left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from forgedsl.errors import GuardError, RunError
from forgedsl.lower.job import Node
from forgedsl.plan.credits import IN_FLIGHT, TRAINING, WAITING, Credits
from forgedsl.types.flow import Role
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.firing import Firing, demand
from forgedsl_runtime.controller.weighted_draw import WeightedDraw
from forgedsl_runtime.data_types import Batch
from forgedsl_runtime.flow import Source
from forgedsl_runtime.group import GroupState
from forgedsl_runtime.guards import AgeGuard, DeadlinePassed, deadline
from forgedsl_runtime.ledger import Entry, Ledger
from forgedsl_runtime.operations.registry import operation_of

HEALTH_SECONDS = 10.0


class GroupSource:
    """One source: draws groups while credits last and runs each group through its nodes."""

    def __init__(self, context: Context, source: Source, firing: Firing) -> None:
        self.source = source
        self.ledger = Ledger()
        self.ended = False
        self.waiting: dict[int, GroupState] = {}
        self.in_flight: dict[int, GroupState] = {}
        self.fresh: dict[int, GroupState] = {}
        """waiting groups whose age was not checked yet"""
        self._choice = WeightedDraw(context, source) if source.node.weight is not None else None
        self._pulled = {sync.name: 0 for sync in source.syncs}
        self._flow = context.flow
        self._endpoints = context.endpoints
        self._events = context.events
        self._recorder = context.recorder
        self._meter = context.meter
        self._pulse = context.pulse
        self._changed_data = context.changed_data
        self._firing = firing
        share, schedule = source.quota, context.job.schedule
        every = max((sync.every for sync in source.syncs), default=None)
        self.credits = Credits(
            prompts=share,
            credits=max(share, schedule.credits * share // schedule.prompts),
            window=max(1, schedule.window * share // schedule.prompts),
            every=every,
        )

    async def run(self, tasks: asyncio.TaskGroup, wanted: Any) -> None:
        """Draw groups while `wanted()` is more than the number of open groups."""
        await self._reopen(tasks)
        while True:
            while self.credits.alive >= self.credits.credits or wanted() <= self.ledger.num_open:
                await self._pulse.wait()
            before, item = await self._next_accepted()
            if item is None:
                break
            local = self.credits.admit()
            assert local is not None, "only this task admits"
            self.ledger.drawn(Entry(local=local, before=before, row=_row(item)), _cursor(item))
            self._begin(tasks, local, item)
        self.ended = True
        self._pulse.fire()

    async def _next_accepted(self) -> tuple[int, Any]:
        """Return the next item that the weighted draw accepts, and the source position before
        it."""
        before = self.ledger.position
        while True:
            item = await self._draw()
            if item is None:
                return before, None
            self._meter.rows_dropped += _cursor(item) - before - _num_rows(item)
            if self._choice is None or await self._choice.accepts(item):
                return before, item
            before = _cursor(item)

    async def _reopen(self, tasks: asyncio.TaskGroup) -> None:
        """Draw the groups again that were in flight at the checkpoint, then seek to its
        position."""
        node, position = self.source.node, 0
        for entry in self.ledger.open:
            if entry.before != position:
                await demand(node, self._endpoints.seek(node, entry.before))
            item = await self._draw()
            if item is None or _row(item) != entry.row:
                self._handle_changed_row(entry, item)
            if item is None:
                self.credits.drop(entry.local)
                self.ledger.drop(entry.local)
                position = -1  # unknown: seek below
                continue
            position = _cursor(item)
            self._begin(tasks, entry.local, item)
        if self.ledger.position != position:
            await demand(node, self._endpoints.seek(node, self.ledger.position))

    def _handle_changed_row(self, entry: Entry, item: Any) -> None:
        """Handle a resumed group that begins with another row: warn if changed data is allowed.

        Raises:
            RunError: changed data is not allowed.
        """
        node, now = self.source.node, None if item is None else _row(item)
        text = f"dataset {node.target} changed since the checkpoint: row {entry.row} is now {now}"
        if not self._changed_data:
            raise RunError(text, origin=node.origin, remedy="restore the data, or start a new run")
        self._events.emit("warning", text=text)

    def drop(self, group: GroupState, reason: str) -> None:
        """Drop a group that is not in a batch; its credit returns."""
        self._observe([group])
        self.in_flight.pop(group.local, None)
        self.waiting.pop(group.local, None)
        self.credits.drop(group.local)
        self.ledger.drop(group.local)
        if self._recorder is not None:
            self._recorder.drop(group, reason)
        self._meter.group_dropped(reason)
        self._events.emit("group.dropped", group=group.id, reason=reason)
        self._pulse.fire()

    def take(self) -> list[GroupState]:
        return [self.waiting.pop(local) for local in self.credits.take()]

    def take_rest(self) -> list[GroupState]:
        """Take the last groups of an ended source; their credits return at once."""
        rest = [self.waiting.pop(local) for local in self.credits.groups(WAITING)]
        for group in rest:
            self.credits.drop(group.local)
        return rest

    def consume(self, groups: list[GroupState], step: int) -> None:
        """Record that the step on `groups` is done. Their credits return now or, if a sampler is
        synced, when it has loaded the weights of `step`."""
        self._observe(groups)
        for group in groups:
            self.ledger.consume(group.local)
        held = set(self.credits.groups(TRAINING))
        self.credits.stepped([group.local for group in groups if group.local in held], step)
        self._pulse.fire()

    def record_sync(self, sync: Node, step: int) -> None:
        """Record that a sampler has the weights of `step`. Credits follow the sampler with the
        oldest weights."""
        if sync.name in self._pulled:
            self._pulled[sync.name] = step
            self.credits.pulled(min(self._pulled.values()))
            self._pulse.fire()

    def _observe(self, groups: list[GroupState]) -> None:
        if self._choice is not None:
            for group in groups:
                self._choice.observe(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the ledger, and the results for the weighted draw."""
        results = {} if self._choice is None else {"results": self._choice.state_dict()}
        return self.ledger.state_dict() | results

    def load(self, state: dict[str, Any], step: int) -> None:
        """Restore the ledger; groups that were open are drawn again first."""
        if self._choice is not None:
            self._choice.load_state_dict(state.get("results", {}))
        self.ledger.load_state_dict(state)
        self.credits.load_state_dict(
            {
                "next_group": self.ledger.next_local,
                "pulled_version": step,
                "groups": [[entry.local, IN_FLIGHT] for entry in self.ledger.open],
                "stepped": [],
            }
        )

    async def _draw(self) -> Any:
        node = self.source.node
        return await demand(node, operation_of(node.op).begin(self._endpoints, node))

    def _begin(self, tasks: asyncio.TaskGroup, local: int, item: Any) -> None:
        group = GroupState(self._flow, self.source, local, item)
        if Role.PROMPTS in self.source.node.roles:
            item.group = group.id
        self.in_flight[local] = group
        self._events.emit(
            "group.drawn", group=group.id, source=self.source.node.name, row=_row(item)
        )
        tasks.create_task(self._work(group), name=f"group {group.id}")

    async def _work(self, group: GroupState) -> None:
        reason = await self._firing.group(group)
        if reason is not None:
            self.drop(group, reason)
            return
        self.waiting[group.local] = self.fresh[group.local] = self.in_flight.pop(group.local)
        self.credits.finalize(group.local)
        self._meter.progress += 1
        self._events.emit("group.ready", group=group.id)
        self._pulse.fire()


class Pool:
    """Makes batches from all sources, in order of admission within each."""

    def __init__(self, context: Context, intakes: list[GroupSource]) -> None:
        self.intakes = intakes
        self._job = context.job
        self._flow = context.flow
        self._endpoints = context.endpoints
        self._meter = context.meter
        self._versions = context.versions
        self._pulse = context.pulse
        targets = [node.target for node in self._flow.steps]
        per_version = max(targets.count(target) for target in targets)
        self._ages = AgeGuard(context.job.schedule, steps_per_version=per_version)
        nodes = [node for intake in intakes for node in (intake.source.node, *intake.source.nodes)]
        self._judged: dict[str, int] = {}
        """trainer versions at the last staleness check"""
        self._patience = context.job.schedule.starve_timeout or 2 * sum(
            node.timeout for node in nodes
        )

    async def next_batch(self, step: int) -> list[GroupState] | None:
        """Return the groups of the next optimizer step; None at the end of the data.

        Raises:
            GuardError: no progress for `starve_timeout`; if that is not set, for twice the sum of
                the nodes' timeouts.
        """
        loop = asyncio.get_running_loop()
        progress = self._meter.progress
        try:
            async with asyncio.timeout(self._patience) as clock:
                while True:
                    self._drop_stale()
                    if all(intake.credits.ready() for intake in self.intakes):
                        return [group for intake in self.intakes for group in intake.take()]
                    over = [intake for intake in self.intakes if self._is_exhausted(intake)]
                    if any(not intake.waiting for intake in over):
                        return None
                    if over and all(i in over or i.credits.ready() for i in self.intakes):
                        return self._last_batch()
                    await self._pulse.wait()
                    if self._meter.progress != progress:
                        progress = self._meter.progress
                        clock.reschedule(loop.time() + self._patience)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise await self._starvation_error(step) from error

    def age(self, group: GroupState) -> int | None:
        """Age of a group: trainer version minus version of its oldest token; None without a synced
        sampler."""
        ages = [age for ages in self.ages(group).values() for age in ages.values()]
        return max(ages, default=None)

    def ages(self, group: GroupState) -> dict[str, dict[int, int]]:
        """Return the age of each completion from a synced sampler, by replay edge and sibling."""
        found = {}
        for streams in self._flow.replays.values():
            for stream in streams:
                edge = self._flow.edges[stream.edge]
                supervised = Role.SUPERVISED in edge.node.roles
                sync = None if supervised else self._flow.sync_of(edge.lineage or "")
                if edge.root == group.source.node.name and sync is not None:
                    now = self._versions.trained[sync.target]
                    rollouts = group.live(stream.edge)
                    found[stream.edge] = {s: now - r.version_min for s, r in rollouts.items()}
        return found

    def _drop_stale(self) -> None:
        """Drop stale groups. Check only newly ready groups, or all if the trainer has new
        weights."""
        same = self._judged == self._versions.trained
        self._judged = dict(self._versions.trained)
        for intake in self.intakes:
            groups, intake.fresh = intake.fresh if same else intake.waiting, {}
            for group in [group for local, group in groups.items() if local in intake.waiting]:
                age = self.age(group)
                origin = intake.source.node.origin
                if age is not None and self._ages.is_stale(group.id, age, origin):
                    intake.drop(group, "stale")

    def _is_exhausted(self, intake: GroupSource) -> bool:
        """True if the source has ended and cannot fill its quota any more."""
        return intake.ended and not intake.in_flight and not intake.credits.ready()

    def _last_batch(self) -> list[GroupState]:
        return [
            group
            for intake in self.intakes
            for group in (intake.take_rest() if self._is_exhausted(intake) else intake.take())
        ]

    async def _starvation_error(self, step: int) -> GuardError:
        """Make the starvation error: where groups are waiting, and why others were dropped."""
        lines, at = [], Counter[str]()
        for intake in self.intakes:
            places = Counter(group.waiting_for()[0] for group in intake.in_flight.values())
            ops = {node.name: node.op for node in intake.source.nodes}
            at.update({ops.get(name, name): count for name, count in places.items()})
            where = ", ".join(f"{count} in {name}" for name, count in sorted(places.items()))
            lines.append(
                f"{intake.source.node.name}: {len(intake.waiting)} of {intake.source.quota} groups "
                f"ready, {len(intake.in_flight)} in flight ({where or 'none'})"
            )
        drops = self._meter.groups_dropped
        if drops:
            gone = ", ".join(f"{reason}: {count}" for reason, count in drops.most_common())
            lines.append(f"{drops.total()} groups dropped since the last step ({gone})")
        try:
            async with deadline("health", HEALTH_SECONDS):
                health = await self._endpoints.health()
        except DeadlinePassed as late:
            health = {"services": str(late)}
        lines += [f"{service}: {text}" for service, text in health.items()]
        detail = "".join(f"\n  {line}" for line in lines)
        return GuardError(
            f"starved at step {step + 1}: no group became ready for {self._patience:g} s{detail}",
            origin=self._job.origins.get("schedule", self._flow.steps[0].origin),
            remedy=starvation_remedy(drops, at),
        )


def starvation_remedy(drops: Counter[str], at: Counter[str]) -> str:
    """Return the remedy, by the most frequent drop reason or by the operations that groups wait
    for."""
    reason = max(drops, key=lambda name: drops[name], default="")
    if reason.startswith(("reward ", "score ")):
        return (
            f"most groups were lost to `{reason}`: it fails, or takes longer than its `timeout`; "
            "fix it, or raise its `timeout`; its errors are in events.jsonl"
        )
    if at["score"] > max(at.total() / 2, drops.total()):
        return (
            "most groups wait for their scores, so the rewards are the bottleneck: give them more "
            "`procs`, or raise `schedule.starve_timeout`"
        )
    return (
        "check if a filter or reward rejects nearly every group; if not, raise "
        "`schedule.starve_timeout`"
    )


def _cursor(item: Any) -> int:
    cursor: int = item[0].prompt.cursor if isinstance(item, list) else item.cursor
    return cursor


def _num_rows(item: Any) -> int:
    """Number of rows in an item."""
    return len(item.samples) if isinstance(item, Batch) else 1


def _row(item: Any) -> int | None:
    """Return the row number of an item; None for a batch of rows."""
    if isinstance(item, Batch):
        return None
    row: int = item[0].prompt.row if isinstance(item, list) else item.row
    return row
