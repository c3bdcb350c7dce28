"""Schedule the nodes of a group: fire each when its inputs are ready, until all have fired.

    GroupState.put --on_put--> ready (node, sibling) --slots--> fire --put--> ...

A node that works per completion fires for each completion as soon as its inputs are ready: a reward
starts when its rollout has ended, and does not wait for the group. Other nodes fire once for the
group. Each completion runs in one task. After a node has fired, the task continues with the first
node that this made ready; every other node that became ready gets a new task. A node works on at
most `node.slots` groups at once: a group holds its slot from its first completion there to its
last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forgedsl.lower.job import Node
from forgedsl.types.flow import Role
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.group import MISSING, Column, DropGroup, GroupState
from forgedsl_runtime.operations.registry import operation_of

Fire = Callable[[GroupState, Node, int], Awaitable[Any]]
"""returns the value of a node for one completion"""
FireAll = Callable[[GroupState, Node], Awaitable[tuple[Sequence[int], Any]]]
"""returns the siblings that a node worked on, and its result for them"""


@dataclass(slots=True)
class Place:
    """Firing state of one node in a group."""

    node: Node
    edges: frozenset[str]
    each: bool
    """fires once per completion"""
    need: list[int]
    """by completion (one entry if the node fires once): number of inputs still missing"""
    left: int
    """completions for which it has not fired"""
    queue: list[int] | None = field(default_factory=list)
    """completions that are ready before the group has its slot; None once it has the slot"""
    compared: str | None = None
    """for a node that compares siblings: the edge of the completions. All of them must be there
    before it fires for one"""
    verdict: str | None = None
    """for a filter: the edge with the decision to keep or drop the group"""


class GroupScheduler:
    """Fires `nodes` for `group`. `run` ends when all have fired, or raises the error of one."""

    def __init__(
        self,
        group: GroupState,
        nodes: Sequence[Node],
        slots: dict[str, asyncio.Semaphore],
        fire: Fire,
        fire_all: FireAll,
    ) -> None:
        self._group = group
        self._slots = slots
        self._fire, self._fire_all = fire, fire_all
        self._mine = False
        """True while the scheduler itself puts a value; it then starts the ready nodes"""
        self._places = [_place(group.flow, node) for node in nodes]
        self._readers: dict[str, list[Place]] = {}
        for place in self._places:
            for edge in place.edges:
                self._readers.setdefault(edge, []).append(place)
        self._open = sum(place.left for place in self._places)
        self._ready: list[tuple[Place, int]] = []
        self._held: set[str] = set()

    async def run(self) -> None:
        group, self._done = self._group, asyncio.Event()
        group.on_put = self._on_value
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for edge in self._readers:
                    for sibling, value in enumerate(group.cells(edge)):
                        if value is not MISSING:
                            self._on_completion(edge, sibling)
                    if group.complete(edge):
                        self._on_complete_edge(edge)
                self._start_ready()
                if self._open:
                    await self._done.wait()
        finally:
            group.on_put = None
            for name in self._held:
                self._slots[name].release()

    def _start_ready(self) -> None:
        """Start a task for everything that is ready."""
        ready, self._ready = self._ready, []
        for place, sibling in ready:
            self._tasks.create_task(self._work(place, sibling))

    # ---- what is ready

    def _on_value(self, edge: str, sibling: int, complete: bool) -> None:
        self._on_completion(edge, sibling)
        if complete:
            self._on_complete_edge(edge)
        if not self._mine:  # a batch-level node put the value
            self._start_ready()

    def _on_completion(self, edge: str, sibling: int) -> None:
        """Handle the value of one completion."""
        if self._group.flow.edges[edge].width is None:
            return
        for place in self._readers.get(edge, ()):
            if place.each and edge not in (place.verdict, place.compared):
                self._count_down(place, sibling)

    def _on_complete_edge(self, edge: str) -> None:
        """Handle an edge that is complete."""
        wide = self._group.flow.edges[edge].width is not None
        for place in self._readers.get(edge, ()):
            if edge == place.verdict:
                self._apply_verdict(place)
            elif not place.each:
                self._count_down(place, 0)
            elif not wide or edge == place.compared:
                for sibling in range(len(place.need)):
                    self._count_down(place, sibling)

    def _count_down(self, place: Place, sibling: int) -> None:
        place.need[sibling] -= 1
        if not place.need[sibling]:
            self._ready.append((place, sibling))

    def _apply_verdict(self, place: Place) -> None:
        """Apply the verdict of a filter: drop the group, or let its completions through."""
        mask = place.node.inputs[1]
        verdict = self._group.group_input(mask)
        if not (all(verdict.values.values()) if isinstance(verdict, Column) else verdict):
            raise DropGroup(f"filter {self._group.flow.edges[mask.edge].node.target}")
        for sibling in range(len(place.need)):
            self._count_down(place, sibling)

    # ---- work

    async def _work(self, place: Place, sibling: int) -> None:
        """Fire, then continue with the first node that became ready; the others get tasks of their
        own."""
        while True:
            await self._one(place, sibling)
            if not self._ready:
                return
            place, sibling = self._ready.pop(0)
            self._start_ready()

    async def _one(self, place: Place, sibling: int) -> None:
        group, node = self._group, place.node
        siblings: Sequence[int] = ()
        if place.verdict is not None:
            value = group.cells(node.inputs[0].edge)[sibling]
        elif not place.each:
            await self._slots[node.name].acquire()
            self._held.add(node.name)
            siblings, value = await self._fire_all(group, node)
        else:
            if place.queue is not None:
                place.queue.append(sibling)
                if len(place.queue) > 1:
                    return
                await self._slots[node.name].acquire()
                self._held.add(node.name)
                (sibling, *others), place.queue = place.queue, None
                for other in others:
                    self._tasks.create_task(self._work(place, other))
            value = await self._fire(group, node, sibling)
        self._mine = True
        if place.each:
            group.put(node.name, value, sibling)
        else:
            group.put_result(node, siblings, value)
        self._mine = False
        place.left -= 1
        self._open -= 1
        if not place.left and node.name in self._held:
            self._held.remove(node.name)
            self._slots[node.name].release()
        if not self._open:
            self._done.set()


def _place(flow: Flow, node: Node) -> Place:
    edges = frozenset(given.edge for given in node.inputs)
    width = flow.edges[node.name].width
    each = width is not None and operation_of(node.op).fires == "completion"
    count = (width or 1) if each else 1
    verdict = None
    if Role.DROPS in node.roles:
        edge = flow.edges[node.inputs[0].edge]
        each, count, verdict = True, edge.width or 1, node.inputs[1].edge
    return Place(
        node=node, edges=edges, each=each, need=[len(edges)] * count, left=count,
        compared=node.inputs[0].edge if node.compares else None, verdict=verdict,
    )  # fmt: skip
