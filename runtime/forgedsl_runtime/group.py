"""State of one drawn group in the flow: a cell for every value of every edge.

An edge with a width has one cell per completion; other edges have one cell for the group. Nodes put
values, and each put is reported through `on_put`, which fires the nodes that are ready. A dropped
completion is a `Dropped` in its cell. Values computed from it are the same `Dropped`, so a consumer
sees which siblings are left. A node that fires once for the group may return one entry per
completion; such a value is a `Column`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from forgedsl.errors import InternalError, RunError
from forgedsl.lower.job import Input, Node
from forgedsl_runtime.data_types import Batch, Rollout
from forgedsl_runtime.endpoints import Score
from forgedsl_runtime.flow import Flow, Source


class DropGroup(Exception):
    """The whole group is dropped; metrics count the drop under `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Placeholder for every value of a dropped completion."""

    reason: str


@dataclass(frozen=True, slots=True)
class Column:
    """One value per live completion, keyed by sibling number."""

    values: Mapping[int, Any]


class _Missing:
    """Type of MISSING, the placeholder in a cell without a value."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


class GroupState:
    """Values of one group. `local` counts groups of its source; `id` is unique in the run."""

    def __init__(self, flow: Flow, source: Source, local: int, item: Any) -> None:
        self.flow = flow
        self.source = source
        self.local = local
        self.id = local * len(flow.sources) + source.index
        edges = [(n, e.width or 1) for n, e in flow.edges.items() if e.root == source.node.name]
        self._cells: dict[str, list[Any]] = {name: [MISSING] * width for name, width in edges}
        self._left = dict(edges)
        """by edge: number of cells without a value"""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self.on_put: Callable[[str, int, bool], None] | None = None
        """callback for every value: edge, sibling, True if the edge is now complete"""
        self.item = item
        self.scores: dict[str, dict[int, Score]] = {}
        self.abandoned = False
        self.dropped = False
        """True once a completion was dropped"""
        self.put_all(source.node.name, item if isinstance(item, list) else [item])

    def put(self, edge: str, value: Any, sibling: int = 0) -> None:
        """Fill a cell. Each cell is filled once."""
        if self.abandoned:
            return
        cells = self._cells[edge]
        if cells[sibling] is not MISSING:
            raise InternalError(
                f"{edge} of group {self.id} already has a value for completion {sibling}"
            )
        cells[sibling] = value
        if type(value) is Dropped:
            self.dropped = True
        self._left[edge] = left = self._left[edge] - 1
        if not left and self._waiting:
            self._wake(edge)
        if self.on_put is not None:
            self.on_put(edge, sibling, not left)

    def _wake(self, edge: str) -> None:
        waiting = self._waiting.pop(edge, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def put_all(self, edge: str, values: Sequence[Any]) -> None:
        for sibling, value in enumerate(values):
            self.put(edge, value, sibling)

    def put_result(self, node: Node, siblings: Sequence[int], value: Any) -> None:
        """Store the result of a group- or batch-level node for `siblings`; other siblings become
        `Dropped`."""
        edge = self.flow.edges[node.name]
        if edge.width is None:
            per_sibling = isinstance(value, list)
            cell = Column(dict(zip(siblings, value, strict=True))) if per_sibling else value
            self.put(node.name, cell)
            return
        by_sibling = dict(zip(siblings, value, strict=True))
        for sibling in range(edge.width):
            self.put(node.name, by_sibling.get(sibling, Dropped(node.name)), sibling)

    def abandon(self, reason: str) -> None:
        """Mark missing cells as `Dropped` and wake all that wait for a value of this group."""
        self.abandoned = self.dropped = True
        for edge, cells in self._cells.items():
            cells[:] = [Dropped(reason) if value is MISSING else value for value in cells]
            self._left[edge] = 0
            self._wake(edge)

    def cells(self, edge: str) -> Sequence[Any]:
        """Return the values of an edge by sibling; MISSING where there is none yet."""
        return self._cells[edge]

    def complete(self, edge: str) -> bool:
        return not self._left[edge]

    def live(self, edge: str) -> dict[int, Any]:
        """Return the values of a complete edge by sibling, without dropped completions."""
        return {s: value for s, value in enumerate(self._cells[edge]) if type(value) is not Dropped}

    def waiting_for(self) -> list[str]:
        """Return the names of incomplete edges, for the starvation report."""
        return [name for name, left in self._left.items() if left]

    def completion_inputs(self, inputs: Sequence[Input], sibling: int) -> list[Any] | Dropped:
        """Return the values of these inputs for one completion; the first `Dropped` if one of them
        was dropped."""
        found = []
        for given in inputs:
            edge = given.edge
            value = self._cells[edge][sibling if self.flow.edges[edge].width else 0]
            kind = type(value)
            if kind is Column:
                value = value.values.get(sibling, Dropped(edge))
                kind = type(value)
            if kind is Dropped:
                return value  # type: ignore[no-any-return]
            found.append(value if given.attribute is None else _attribute(value, given))
        return found

    def group_input(self, given: Input) -> Any:
        """Return an input for the whole group: a `Column` of live completions, or one value.

        Raises:
            DropGroup: fewer than two completions are live; or the edge has only one, and it was
                dropped.
        """
        values = self._cells[given.edge]
        if self.flow.edges[given.edge].width is None:
            value = values[0]
            if isinstance(value, Batch):
                value = Column(dict(enumerate(value.samples)))
            if not isinstance(value, Column):
                return _attribute(value, given)
            return Column({s: _attribute(v, given) for s, v in value.values.items()})
        live = {s: value for s, value in enumerate(values) if type(value) is not Dropped}
        if given.attribute is not None:
            live = {s: _attribute(value, given) for s, value in live.items()}
        if len(live) < min(2, len(values)):
            raise DropGroup(next(value.reason for value in values if isinstance(value, Dropped)))
        return Column(live)

    async def wait_for_inputs(self, inputs: Sequence[Input]) -> tuple[list[int], list[Any]]:
        """Wait until all inputs are complete, then return `join_inputs(inputs)`."""
        for given in inputs:
            if self._left[given.edge]:
                if given.edge not in self._waiting:
                    self._waiting[given.edge] = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._waiting[given.edge])
        return self.join_inputs(inputs)

    def join_inputs(self, inputs: Sequence[Input]) -> tuple[list[int], list[Any]]:
        """Return (siblings, values). A lineage is the node that sampled the completions. Only
        siblings that are live in every input of their lineage are used. `siblings` are those of the
        first lineage. `values` has an entry per input: a list over siblings, or one value.

        Raises:
            DropGroup: no sibling is left.
        """
        values = [self.group_input(given) for given in inputs]
        lineages = [self.flow.edges[given.edge].lineage for given in inputs]
        alive: dict[str | None, Set[int]] = {}
        for lineage, value in zip(lineages, values, strict=True):
            if isinstance(value, Column):
                mine = value.values.keys()
                alive[lineage] = alive[lineage] & mine if lineage in alive else mine
        siblings = {lineage: sorted(found) for lineage, found in alive.items()}
        if not all(siblings.values()):
            raise DropGroup("no completion has every value")
        lists = [
            [value.values[s] for s in siblings[lineage]] if isinstance(value, Column) else value
            for lineage, value in zip(lineages, values, strict=True)
        ]
        return next(iter(siblings.values()), []), lists


def _attribute(value: Any, given: Input) -> Any:
    if given.attribute is None or isinstance(value, Dropped):
        return value
    head, _, part = given.attribute.partition(".")
    if type(value) is Rollout and head in value.kept:
        return value.kept[head]
    return getattr(value, head) if head != "rewards" else value.part(part)


def number(name: str, value: Any, node: Node) -> float:
    """Convert a value of a completion to float, for the loss.

    Raises:
        RunError: it is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RunError(
            f"`{name}` of a completion is {value!r:.60}, which is not a number",
            origin=node.origin,
            remedy="a loss can read only columns of numbers",
        ) from None
