"""Fire nodes: call the endpoint of a node with its inputs, and handle failures.

    GroupState cells --inputs--> Firing --Endpoints--> GroupState cells

`group_scheduler.py` decides when. In the batch phase, after a batch was assembled, a node fires
once for each group of the batch, or once for the whole batch if its level is `batch`. A failed
completion is retried, then dropped; a group with too few completions left is dropped (DropGroup);
every other failure ends the run as a RunError that names the service and where it was declared.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from forgedsl.errors import ForgeError, RunError
from forgedsl.lower.job import Node
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.deadlines import OpenCall, deadline
from forgedsl_runtime.controller.group_scheduler import GroupScheduler
from forgedsl_runtime.data_types import Batch
from forgedsl_runtime.endpoints import (
    DropRollout,
    RolloutError,
    ServiceError,
)
from forgedsl_runtime.group import DropGroup, Dropped, GroupState
from forgedsl_runtime.guards import DeadlinePassed
from forgedsl_runtime.operations.base import Call
from forgedsl_runtime.operations.registry import operation_of
from forgedsl_runtime.tracebacks import described

T = TypeVar("T")


async def bounded(call: Awaitable[T], *, node: Node, seconds: float | None, what: str = "") -> T:
    """Await an endpoint call, with a deadline unless `seconds` is None. `what` names the call in
    errors, otherwise the node does. `RolloutError`, `DropRollout` and `DeadlinePassed` pass through
    to the caller, which handles them.

    Raises:
        RunError: any other failure, with the origin of the service or node.
    """
    timed: OpenCall | None = None
    try:
        if seconds is None:
            return await call
        with deadline(seconds) as timed:
            return await call
    except (RolloutError, DropRollout, DeadlinePassed, ForgeError):
        raise
    except Exception as error:
        what = what or f"{node.op} {node.name}" + (f" on {node.target}" if node.target else "")
        if isinstance(error, ServiceError):
            failure = error.failure
            raise RunError(
                f"service {failure.service} failed during {what}: {failure.message}",
                origin=failure.origin,
                service=failure.service,
            ) from error
        if isinstance(error, TimeoutError) and seconds is not None and timed and timed.expired:
            raise DeadlinePassed(what, seconds) from error
        raise RunError(
            f"{what} failed: {described(error)}", origin=node.origin, service=node.target
        ) from error


def ask(node: Node, call: Awaitable[T], *, patient: bool = False) -> Coroutine[Any, Any, T]:
    """Await a call with the timeout of the node; `patient`: without a timeout."""
    return bounded(call, node=node, seconds=None if patient else node.timeout)


async def demand(node: Node, call: Awaitable[T]) -> T:
    """Await a call that the run cannot go on without: timeouts and drops also raise RunError."""
    try:
        return await ask(node, call)
    except (DeadlinePassed, RolloutError, DropRollout) as error:
        raise RunError(str(error), origin=node.origin, service=node.target) from error


class Firing:
    """Runs the nodes of groups and batches against the endpoints."""

    def __init__(self, context: Context) -> None:
        self._flow = context.flow
        self.seed = context.job.seed
        self.endpoints = context.endpoints
        self.events = context.events
        self.meter = context.meter
        self.failures = context.failures
        self._slots = {node.name: asyncio.Semaphore(node.slots) for node in context.job.nodes}
        self._offsets = {
            node.name: self._flow.offsets.get(self._flow.edges[node.name].lineage or "", 0)
            for node in context.job.nodes
            if node.name in self._flow.edges
        }
        """by node: the number of its first completion. Completions of a group are numbered over all
        of its samplers"""

    ask, demand = staticmethod(ask), staticmethod(demand)

    async def group(self, group: GroupState, known: Collection[str] = ()) -> str | None:
        """Fire every group-phase node of a group, except those whose values are `known`; return the
        reason if the group was dropped."""
        nodes = [node for node in group.source.nodes if node.name not in known]
        return await self._run_nodes(group, nodes) or self._unusable(group)

    async def batch(self, groups: Sequence[GroupState]) -> None:
        """Fire the batch-phase nodes for the groups of an assembled batch."""
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                nodes = [
                    node
                    for node in self._flow.batch_nodes
                    if not _is_batch_level(node)
                    and self._flow.edges[node.name].root == group.source.node.name
                ]
                tasks.create_task(self._run_batch_nodes(group, nodes))
            for node in self._flow.batch_nodes:
                if _is_batch_level(node):
                    tasks.create_task(self._fire_for_batch(groups, node))
        for group in groups:
            if not group.abandoned and (reason := self._unusable(group)):
                self._abandon(group, reason)

    def _unusable(self, group: GroupState) -> str | None:
        """Return the drop reason if too few completions of a group are left for a batch, else None.
        A completion counts if it has all values that nodes and replays of the batch phase read."""
        if not group.dropped and not isinstance(group.item, Batch):  # a batch may be empty
            return None
        inputs = [given for node in self._flow.batch_nodes for given in node.inputs]
        for stream in itertools.chain.from_iterable(self._flow.replays.values()):
            inputs += [stream.input, *stream.fields]
        mine = [i for i in inputs if self._flow.edges[i.edge].root == group.source.node.name]
        waiting = set(group.waiting_for())
        try:
            group.join_inputs([given for given in mine if given.edge not in waiting])
        except DropGroup as drop:
            return drop.reason
        return None

    async def _run_nodes(self, group: GroupState, nodes: Sequence[Node]) -> str | None:
        reason: str | None = None
        try:
            await GroupScheduler(
                group, nodes, self._slots, self._fire_for_completion, self._fire_for_group
            ).run()
        except* DropGroup as drops:
            reason = _leaf(drops).reason
        return reason

    async def _run_batch_nodes(self, group: GroupState, nodes: Sequence[Node]) -> None:
        reason = await self._run_nodes(group, nodes)
        if reason is not None:
            self._abandon(group, reason)

    def _abandon(self, group: GroupState, reason: str) -> None:
        """Drop a group that is already in a batch; its samples are left out."""
        group.abandon(reason)
        self.meter.group_dropped(reason)
        self.events.emit("group.dropped", group=group.id, reason=reason)

    async def _fire_for_group(self, group: GroupState, node: Node) -> tuple[Sequence[int], Any]:
        siblings, values = group.join_inputs(node.inputs)
        result = await operation_of(node.op).fire(self, Call(node=node, args=values, group=group))
        _check_length(node, result, len(siblings))
        return siblings, result

    async def _fire_for_completion(self, group: GroupState, node: Node, sibling: int) -> Any:
        args = group.completion_inputs(node.inputs, sibling)
        if isinstance(args, Dropped):
            return args
        number = self._offsets[node.name] + sibling
        call = Call(node=node, args=args, group=group, sibling=sibling, number=number)
        try:
            return await operation_of(node.op).fire(self, call)
        except DropRollout as drop:
            self.meter.rollouts_dropped += 1
            where = {"node": node.name, "group": group.id, "sibling": sibling}
            self.events.emit("rollout.dropped", **where, reason=drop.reason, message=str(drop))
            return Dropped(drop.reason)

    async def _fire_for_batch(self, groups: Sequence[GroupState], node: Node) -> None:
        """Fire a node once for the whole batch: concatenate its inputs, split the result back."""
        mine = [
            each for each in groups if each.source.node.name == self._flow.edges[node.name].root
        ]
        parts: list[tuple[GroupState, list[int], list[Any]]] = []
        for group in mine:
            try:
                siblings, values = await group.wait_for_inputs(node.inputs)
            except DropGroup as drop:
                self._abandon(group, drop.reason)
            if not group.abandoned:
                parts.append((group, siblings, values))
        if not parts:
            return
        columns = [
            [item for _, siblings, values in parts for item in _spread(values[index], siblings)]
            for index in range(len(node.inputs))
        ]
        numbers = [n for n, (_, siblings, _) in enumerate(parts) for _ in siblings]
        result = await operation_of(node.op).fire(
            self, Call(node=node, args=columns, groups=numbers)
        )
        _check_length(node, result, sum(len(siblings) for _, siblings, _ in parts))
        for group, siblings, _ in parts:
            if isinstance(result, list):
                mine_of_it, result = result[: len(siblings)], result[len(siblings) :]
                group.put_result(node, siblings, mine_of_it)
            else:
                group.put_result(node, siblings, result)


def _check_length(node: Node, result: Any, count: int) -> None:
    """Raise RunError if a list does not have one entry per completion."""
    if isinstance(result, list) and len(result) != count:
        raise RunError(
            f"{node.op} {node.name} returned {len(result)} values for {count} completions",
            origin=node.origin,
            service=node.target,
        )


def _is_batch_level(node: Node) -> bool:
    return node.level == "batch" or node.at_step


def _spread(value: Any, siblings: list[int]) -> list[Any]:
    """Repeat a group's value for each of its completions, for a batch-level argument."""
    return value if isinstance(value, list) else [value] * len(siblings)


def _leaf(group: BaseExceptionGroup[DropGroup]) -> DropGroup:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first
