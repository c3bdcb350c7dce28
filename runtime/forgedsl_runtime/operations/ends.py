"""Sources, and the operations at the end of an iteration: `replay`, `step` and `sync`. The
controller carries out all of them itself."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from forgedsl.lower.job import Job, Node
from forgedsl_runtime.endpoints import Endpoints
from forgedsl_runtime.flow import Edge
from forgedsl_runtime.operations.base import Operation


class _Source(Operation):
    """A source: begins the groups of a step, each with an item of its dataset."""

    fires = "source"
    width: int | None = None
    samples = True

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        lineage = node.name if self.samples else None
        return Edge(
            node=node, root=node.name, lineage=lineage, width=self.width, rollouts=self.samples
        )


class Draw(_Source):
    name = "draw"
    samples = False

    def begin(self, endpoints: Endpoints, node: Node) -> Awaitable[Any]:
        return endpoints.draw(node)


class Pairs(_Source):
    name = "pairs"
    width = 2

    def begin(self, endpoints: Endpoints, node: Node) -> Awaitable[Any]:
        return endpoints.pairs(node)


class Batches(_Source):
    name = "batches"

    def begin(self, endpoints: Endpoints, node: Node) -> Awaitable[Any]:
        return endpoints.batches(node)


class _End(Operation):
    fires = "end"


class Replay(_End):
    name = "replay"


class Step(_End):
    name = "step"


class Sync(_End):
    name = "sync"


OPERATIONS = (Draw(), Pairs(), Batches(), Replay(), Step(), Sync())
