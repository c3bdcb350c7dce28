"""Base class of operations at run time. The controller decides when a node fires; the operation of
the node does the work.

analyse   operation.edge(node, read)              static facts about the output
Firing    operation.fire(run, call)               fires for a completion, a group, or a whole batch
Controller  operation.store(context, source)      groups kept across steps (buffers)
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from forgedsl.errors import InternalError
from forgedsl.lower.job import Job, Node
from forgedsl_runtime.endpoints import Endpoints
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.flow import Edge, Flow, Source
from forgedsl_runtime.group import GroupState
from forgedsl_runtime.guards import FailureGuard
from forgedsl_runtime.step_metrics import Meter
from forgedsl_runtime.versions import Versions

Fires = Literal["completion", "group", "source", "stored", "store", "end"]
"""when a node fires, or what it is for:

completion, group  fires once for each completion, or for each group
source             begins groups
stored             draws groups of earlier steps from a buffer
store              puts groups there; has no output edge
end                `replay`, `step` and `sync`; has no output edge
"""


@dataclass(slots=True, kw_only=True)
class Call:
    """One firing of a node. If it fires for a whole group, `sibling` is None; if it fires for a
    whole batch, `group` is None too."""

    node: Node
    args: list[Any]
    group: GroupState | None = None
    sibling: int | None = None
    number: int = 0
    """number of the completion, over all samplers of its group"""
    groups: Sequence[int] = ()
    """for a whole batch: the group of each completion"""


class Run(Protocol):
    """Interface to a run for operations that fire (controller.firing.Firing)."""

    seed: int
    endpoints: Endpoints
    events: EventLog
    meter: Meter
    failures: FailureGuard

    async def ask(self, node: Node, call: Any, *, patient: bool = False) -> Any: ...
    async def demand(self, node: Node, call: Any) -> Any: ...


class Context(Protocol):
    """Interface to a run for stores (controller.context.Context)."""

    @property
    def job(self) -> Job: ...
    @property
    def flow(self) -> Flow: ...
    @property
    def versions(self) -> Versions: ...


class Store(Protocol):
    """Groups kept across steps, as in one replay buffer of a job."""

    name: str

    def __len__(self) -> int: ...
    def put(self, groups: Iterable[GroupState]) -> None:
        """Keep the groups of a finished step."""

    def draw(self, step: int) -> list[tuple[GroupState, int]]:
        """Return groups for the step after `step`, with their ages."""

    def arrays(self) -> dict[str, Any]:
        """Return the stored groups as arrays for a checkpoint."""

    def load(self, found: Mapping[str, Any]) -> bool:
        """Load the arrays of a checkpoint; False if the stored fields are not those that the job
        stores now."""


class Operation:
    """One operation; subclasses override what differs."""

    name: str
    fires: Fires = "completion"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        """Return static facts about the output. Default: values per completion of the input, or per
        group."""
        first = next((edge for edge in read if edge.lineage), None)
        per_completion = first is not None and node.level == "rollout"
        return Edge(
            node=node,
            root=one_root(node, read),
            lineage=first.lineage if first else None,
            width=first.width if per_completion and first else None,
            in_batch=in_batch(node, read),
        )

    def begin(self, endpoints: Endpoints, node: Node) -> Awaitable[Any]:
        """Return the next item of a source; each item begins a group."""
        raise InternalError(f"{self.name} begins no groups")

    async def fire(self, run: Run, call: Call) -> Any:
        raise InternalError(f"{self.name} is not fired")

    def store(self, context: Context, source: Source) -> Store | None:
        """Return the store from which the operation draws groups again, or None."""
        return None


def one_root(node: Node, read: Sequence[Edge]) -> str:
    roots = {edge.root for edge in read}
    if len(roots) != 1:
        raise InternalError(f"node {node.name} ({node.op}) reads roots {sorted(roots)}")
    return roots.pop()


def in_batch(node: Node, read: Sequence[Edge]) -> bool:
    return node.level == "batch" or node.at_step or any(edge.in_batch for edge in read)


def named(node: Node, values: Sequence[Any]) -> dict[str, Any]:
    return {given.argument: value for given, value in zip(node.inputs, values, strict=True)}
