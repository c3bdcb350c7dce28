"""Static facts about `Job.nodes` for the executor; computed by `controller.flow.analyse`."""

from __future__ import annotations

from dataclasses import dataclass

from forgedsl.lower.job import Input, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Static facts about the output of a node (terms: `forgedsl_runtime.controller.flow`)."""

    node: Node
    root: str
    """the source whose groups the value belongs to"""
    lineage: str | None = None
    """the node that made the completions"""
    width: int | None = None
    """values per group; None: one value for the group"""
    rollouts: bool = False
    """the value is the completions (or supervised samples), not a value computed from them"""
    in_batch: bool = False
    """computed on the assembled batch"""


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
    """sources that recall groups of earlier steps from buffers"""
    stores: tuple[Node, ...]
    """nodes that store groups in buffers for later steps"""
    offsets: dict[str, int]
    """by sample node: the first sibling number of its completions in a group"""

    def sync_of(self, lineage: str) -> Node | None:
        """Return the sync that refreshes the sampler of this lineage; None if the sampler is
        frozen."""
        target = self.edges[lineage].node.target
        return next((sync for sync in self.syncs if sync.to == target), None)
