"""The dataflow graph: nodes, each bound to a service or a function, and typed edges between them.

A node is a statement of the flow. Its output is the edge that has its `name`. There are four kinds
of edges: *data* (a stream that is read), *weights* (a sync), *replay* (a buffer) and *control*
(order without data: a sync follows its step). Only weights and replay edges close cycles. The level
of an edge says what an item is: a rollout, a group of rollouts of one prompt, or a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from forgedsl.ir.program import Program, terms_of
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.types.flow import Level, Role, Stream

__all__ = [
    "Edge",
    "EdgeKind",
    "Graph",
    "Input",
    "Level",
    "Node",
    "Removed",
    "Role",
    "Stream",
    "losses_of",
]


class EdgeKind(StrEnum):
    DATA = "data"
    WEIGHTS = "weights"
    CONTROL = "control"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Reads edge `edge`, or its attribute (`prompt.target`), as argument `argument`."""

    argument: str
    edge: str
    attribute: str | None
    span: Span

    @property
    def text(self) -> str:
        return f"{self.edge}.{self.attribute}" if self.attribute else self.edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node; ops and their targets are those of `forgedsl.lower.job.Node`.

    `root` is the node that drew the items. `samplers` are the sample nodes of the rollouts they
    belong to. Both decide whether two edges can be joined.
    """

    id: str
    name: str
    op: str
    target: str
    inputs: tuple[Input, ...]
    level: Level
    stream: Stream
    root: str
    samplers: frozenset[str]
    settings: Mapping[str, Any]
    at_step: bool = False
    roles: frozenset[Role] = frozenset()
    span: Span

    @property
    def values(self) -> bool:
        """True if a `logprobs` node returns values of the value head instead of log-probs."""
        return bool(self.settings.get("values"))

    @property
    def edge_type(self) -> str:
        """Return the type of the node's edge, e.g. `[G] f32`; "" if it carries nothing."""
        whole = self.level is Level.BATCH
        return {
            Stream.PROMPT: "Stream[Prompt]",
            Stream.PAIR: "Stream[Pair]",
            Stream.ROLLOUT: "Stream[Group[Rollout]]",
            Stream.LOGPROB: "[B, T] f32",
            Stream.SCORE: "[G] f32",
            Stream.VALUE: "[B] f32" if whole else "[G] f32",
            Stream.MASK: "bool",
            Stream.BATCH: "Batch",
            Stream.NOTHING: "",
        }[self.stream]

    @property
    def terms(self) -> tuple[tuple[str, tuple[Input, ...]], ...]:
        """The losses of a step, each with its batches. Several batches of a loss are merged."""
        return terms_of(self.settings, self.inputs)


def losses_of(program: Program) -> list[str]:
    """The losses of the flow's steps."""
    return [loss.value.name for s in program.flow if Role.UPDATES in s.roles for loss, _ in s.terms]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An edge between two node ids. `label` is its name, with the attribute that is read."""

    source: str
    target: str
    kind: EdgeKind
    label: str
    attribute: str | None
    type: str

    @staticmethod
    def plain(source: Node, target: Node, kind: EdgeKind, label: str) -> Edge:
        """Make an edge that carries no data of the step."""
        return Edge(
            source=source.id, target=target.id, kind=kind, label=label, attribute=None, type=""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A part of the flow that nothing reads after folding."""

    reason: str
    fields: tuple[str, ...]
    nodes: tuple[str, ...]
    services: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A legal, pruned graph: nodes in topological order, and the services and functions they
    use."""

    flow: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    services: tuple[str, ...]
    datasets: tuple[str, ...]
    trainer: str
    loss: str
    removed: tuple[Removed, ...] = ()

    def node(self, name: str) -> Node:
        """Return the node that produces edge `name`."""
        return next(node for node in self.nodes if node.name == name)

    def of(self, op: str) -> tuple[Node, ...]:
        """Return the nodes of an operation."""
        return tuple(node for node in self.nodes if node.op == op)

    def having(self, role: Role) -> tuple[Node, ...]:
        """Return the nodes that have a role."""
        return tuple(node for node in self.nodes if role in node.roles)

    @property
    def roles(self) -> frozenset[Role]:
        """Return all roles that its nodes have."""
        return frozenset[Role]().union(*(node.roles for node in self.nodes))

    @property
    def step(self) -> Node:
        return self.having(Role.UPDATES)[0]

    @property
    def updates(self) -> tuple[int, int]:
        """Return the passes of the step over its batch, and the updates in each."""
        return int(self.step.settings["epochs"]), int(self.step.settings["minibatches"])

    def drawn(self, node: Node) -> int:
        """Return the groups of a step that a node works on."""
        return self.quota(self.node(node.root))

    def quota(self, source: Node) -> int:
        """Return the groups that a source starts in a step; 1 for a source of whole batches."""
        return int(source.settings.get("count", 1))

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes that draw the data of a step (draw, batches, pairs)."""
        return tuple(node for node in self.nodes if Role.SOURCE in node.roles)

    @property
    def syncs(self) -> tuple[Node, ...]:
        return self.having(Role.TRANSFERS)
