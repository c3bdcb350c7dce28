"""What the executor knows of `Job.nodes` before it runs; `controller.flow.analyse` works it out."""

from __future__ import annotations

from dataclasses import dataclass

from forgedsl.lower.job import Input, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What is known about the output of a node before anything runs."""

    node: Node
    root: str
    lineage: str | None = None
    width: int | None = None
    """values per group; None: one value for the group"""
    rollouts: bool = False
    """carries the completions themselves (or supervised samples), not values about them"""
    in_batch: bool = False
    """known only once the batch is assembled"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source and the nodes that fire for each of its groups."""

    node: Node
    index: int
    quota: int
    """groups per optimizer step"""
    nodes: tuple[Node, ...]
    syncs: tuple[Node, ...]
    """the syncs that refresh the samplers of these groups"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One completion input of a replay, and the fields that belong to it."""

    input: Input
    fields: tuple[Input, ...]

    @property
    def edge(self) -> str:
        return self.input.edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    edges: dict[str, Edge]
    sources: tuple[Source, ...]
    batch_nodes: tuple[Node, ...]
    replays: dict[str, tuple[Stream, ...]]
    steps: tuple[Node, ...]
    syncs: tuple[Node, ...]
    scores: tuple[Node, ...]
    recalls: tuple[Source, ...]
    """what begins groups of earlier steps"""
    stores: tuple[Node, ...]
    """what keeps groups for later steps"""
    offsets: dict[str, int]
    """by sample node: where its completions begin in the sibling numbers of a group"""

    def synced(self, lineage: str) -> Node | None:
        """The sync that refreshes the sampler of this lineage; None: it is frozen."""
        target = self.edges[lineage].node.target
        return next((sync for sync in self.syncs if sync.to == target), None)
