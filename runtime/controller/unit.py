"""One drawn group on its way through the flow: a cell for every value it will have.

A cell is a future per completion (edges with a width) or one future for the group. Nodes put
values, readers await them; that is the whole firing rule. A completion that was dropped is a
`Dead` in its cell, and whatever is computed from it is the same `Dead`, so a consumer sees which
siblings are left. A value of the group that has one entry per completion is a `Column`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forgedsl.lower.job import Input, Node
from forgedsl.runtime.controller.flow import Flow, Source
from forgedsl.runtime.endpoints import Score
from forgedsl.runtime.items import Batch


class DropGroup(Exception):
    """The whole group is given up; `reason` is what the metrics count it under."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Dead:
    """Stands for every value of a dropped completion."""

    reason: str


@dataclass(frozen=True, slots=True)
class Column:
    """One value per live completion, by sibling."""

    values: Mapping[int, Any]


class Unit:
    """A group. `local` counts within its source, `group` is unique in the run."""

    def __init__(self, flow: Flow, source: Source, local: int, item: Any) -> None:
        loop = asyncio.get_running_loop()
        self.flow = flow
        self.source = source
        self.local = local
        self.group = local * len(flow.sources) + source.index
        self._cells: dict[str, list[asyncio.Future[Any]]] = {
            name: [loop.create_future() for _ in range(edge.width or 1)]
            for name, edge in flow.edges.items()
            if edge.root == source.node.name
        }
        self.item = item
        self.scores: dict[str, dict[int, Score]] = {}
        self.abandoned = False
        self.put_all(source.node.name, item if source.node.op == "pairs" else [item])

    def put(self, edge: str, value: Any, sibling: int = 0) -> None:
        """Fill a cell, once. A cancelled reader takes its cell along: the group was given up."""
        cell = self._cells[edge][sibling]
        if not cell.cancelled() and not self.abandoned:
            cell.set_result(value)

    def put_all(self, edge: str, values: Sequence[Any]) -> None:
        for sibling, value in enumerate(values):
            self.put(edge, value, sibling)

    def put_result(self, node: Node, siblings: Sequence[int], value: Any) -> None:
        """Store what a group- or batch-level node returned for `siblings`."""
        edge = self.flow.edges[node.name]
        if edge.width is None:
            per_sibling = isinstance(value, list)
            cell = Column(dict(zip(siblings, value, strict=True))) if per_sibling else value
            self.put(node.name, cell)
            return
        by_sibling = dict(zip(siblings, value, strict=True))
        for sibling in range(edge.width):
            self.put(node.name, by_sibling.get(sibling, Dead(node.name)), sibling)

    async def copy(self, source: str, target: str) -> None:
        """Give `target` the values of `source`, as they come."""
        for sibling, cell in enumerate(self._cells[source]):
            self.put(target, await cell, sibling)

    def abandon(self, reason: str) -> None:
        """Leave the assembled batch: whoever still waits for a value of this group is let go."""
        self.abandoned = True
        for cells in self._cells.values():
            for cell in cells:
                if not cell.done():
                    cell.set_result(Dead(reason))

    def live(self, edge: str) -> dict[int, Any]:
        """The values of an edge that has them all, without dropped completions."""
        values = enumerate(cell.result() for cell in self._cells[edge])
        return {sibling: value for sibling, value in values if not isinstance(value, Dead)}

    def waiting_for(self) -> list[str]:
        """Names of the edges that have no value yet, for the starvation report."""
        return [name for name, cells in self._cells.items() if not all(c.done() for c in cells)]

    async def first(self, node: Node) -> None:
        """Wait until every input is there for at least one completion."""
        for given in node.inputs:
            await asyncio.wait(self._cells[given.edge], return_when=asyncio.FIRST_COMPLETED)

    async def one(self, given: Input, sibling: int) -> Any:
        """The value of an input for one completion, or a `Dead`."""
        cells = self._cells[given.edge]
        value = await cells[sibling if self.flow.edges[given.edge].width else 0]
        if isinstance(value, Column):
            value = value.values.get(sibling, Dead(given.edge))
        return _attribute(value, given)

    async def whole(self, given: Input) -> Any:
        """The value of an input for the group: a `Column` of live completions, or one value."""
        cells = self._cells[given.edge]
        values = [await cell for cell in cells]
        if self.flow.edges[given.edge].width is None:
            value = values[0]
            if isinstance(value, Batch):
                value = Column(dict(enumerate(value.samples)))
            if not isinstance(value, Column):
                return _attribute(value, given)
            return Column({s: _attribute(v, given) for s, v in value.values.items()})
        live = {s: _attribute(v, given) for s, v in enumerate(values) if not isinstance(v, Dead)}
        if len(live) < min(2, len(values)):
            raise DropGroup(next(value.reason for value in values if isinstance(value, Dead)))
        return Column(live)

    async def joined(self, inputs: Sequence[Input]) -> tuple[list[int], list[Any]]:
        """All inputs restricted to the siblings that are alive in every one of their lineage.

        Returns the siblings of the first lineage, and per input a list over siblings or a value.
        """
        values = [await self.whole(given) for given in inputs]
        lineages = [self.flow.edges[given.edge].lineage for given in inputs]
        alive: dict[str | None, set[int]] = {}
        for lineage, value in zip(lineages, values, strict=True):
            if isinstance(value, Column):
                alive[lineage] = alive.get(lineage, set(value.values)) & set(value.values)
        siblings = {lineage: sorted(found) for lineage, found in alive.items()}
        if not all(siblings.values()):
            raise DropGroup("no completion has every value")
        lists = [
            [value.values[s] for s in siblings[lineage]] if isinstance(value, Column) else value
            for lineage, value in zip(lineages, values, strict=True)
        ]
        return next(iter(siblings.values()), []), lists


def _attribute(value: Any, given: Input) -> Any:
    if given.attribute is None or isinstance(value, Dead):
        return value
    return getattr(value, given.attribute)
