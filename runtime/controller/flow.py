"""The static view of `Job.nodes` that the executor works from.

    Job.nodes --analyse--> Flow: sources, edges, and in which phase each node fires

Every statement's output is an edge, named like its node. Each edge belongs to one *root* (the
source whose groups it is computed for). Values that exist once per completion have a *lineage*
(the statement that made the completions) and a *width* (how many per group). Nodes fire in one of
two phases: *group* (as soon as the inputs of that group are there) or *batch* (on the groups of an
assembled batch: batch-level functions, log-probs under the weights before the step, and whatever
reads those). The first input of an operation is what it works on: the prompt of `sample`, the
completions of `logprobs`, `score` and `keep`; the second one of `score` is the target, of `keep`
the mask. Only `call` and `mask` read their inputs by argument name, and `replay` and `put` their
fields. What is drawn from a buffer (`recall`) is a root too, all of whose nodes fire in the batch
phase: a group of it begins when the fresh ones of a step are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from forgedsl.errors import InternalError
from forgedsl.lower.job import Input, Job, Node

SOURCES = ("draw", "batches", "pairs")
ENDS = ("replay", "put", "step", "sync")


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
class Recall:
    """A draw from a buffer, and what fills that."""

    source: Source
    put: Node
    sync: Node | None
    """what refreshes the sampler of its completions"""

    @property
    def rollout(self) -> Input:
        return next(i for i in self.put.inputs if i.argument == "rollout")

    @property
    def keep(self) -> Input | None:
        return next((i for i in self.put.inputs if i.argument == "keep"), None)

    @property
    def fields(self) -> tuple[Input, ...]:
        return tuple(i for i in self.put.inputs if i.argument not in ("rollout", "keep"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    edges: dict[str, Edge]
    sources: tuple[Source, ...]
    batch_nodes: tuple[Node, ...]
    replays: dict[str, tuple[Stream, ...]]
    steps: tuple[Node, ...]
    syncs: tuple[Node, ...]
    scores: tuple[Node, ...]
    recalls: tuple[Recall, ...]
    offsets: dict[str, int]
    """by sample node: where its completions begin in the sibling numbers of a group"""

    def synced(self, lineage: str) -> Node | None:
        """The sync that refreshes the sampler of this lineage; None: it is frozen."""
        target = self.edges[lineage].node.target
        return next((sync for sync in self.syncs if sync.to == target), None)


def analyse(job: Job) -> Flow:
    """Work out roots, lineages, phases and replay fields. Nodes come in topological order."""
    edges: dict[str, Edge] = {}
    offsets: dict[str, int] = {}
    next_offset: dict[str, int] = {}
    for node in job.nodes:
        if node.op in ENDS:
            continue
        edge = _recalled(job, node, edges) if node.op == "recall" else _edge(node, edges)
        edges[node.name] = edge
        if node.op == "sample":
            offsets[node.name] = next_offset.get(edge.root, 0)
            next_offset[edge.root] = offsets[node.name] + (edge.width or 1)
    ends = {op: tuple(node for node in job.nodes if node.op == op) for op in ENDS}
    return Flow(
        edges=edges,
        sources=_sources(job, edges, ends["sync"]),
        batch_nodes=tuple(
            edge.node for edge in edges.values() if edge.in_batch and edge.node.op != "recall"
        ),
        replays={node.name: _streams(node, edges) for node in ends["replay"]},
        steps=ends["step"],
        syncs=ends["sync"],
        scores=tuple(node for node in job.nodes if node.op == "score"),
        recalls=_recalls(job, edges, ends),
        offsets=offsets,
    )


def _put(job: Job, buffer: str) -> Node:
    return next(node for node in job.nodes if node.op == "put" and node.target == buffer)


def _recalled(job: Job, node: Node, edges: dict[str, Edge]) -> Edge:
    """As wide as what is put into its buffer."""
    put = _put(job, node.target)
    kept = edges[next(i.edge for i in put.inputs if i.argument == "rollout")]
    return Edge(
        node=node, root=node.name, lineage=node.name, width=kept.width, rollouts=True, in_batch=True
    )


def _recalls(
    job: Job, edges: dict[str, Edge], ends: dict[str, tuple[Node, ...]]
) -> tuple[Recall, ...]:
    found = []
    for index, node in enumerate(node for node in job.nodes if node.op == "recall"):
        put = _put(job, node.target)
        source = Source(node=node, index=index, quota=node.count or 1, nodes=(), syncs=())
        lineage = edges[next(i.edge for i in put.inputs if i.argument == "rollout")].lineage or ""
        target = edges[lineage].node.target
        sync = next((sync for sync in ends["sync"] if sync.to == target), None)
        found.append(Recall(source=source, put=put, sync=sync))
    return tuple(found)


def _edge(node: Node, edges: dict[str, Edge]) -> Edge:
    if node.op in SOURCES:
        width = 2 if node.op == "pairs" else None
        lineage = None if node.op == "draw" else node.name
        return Edge(
            node=node, root=node.name, lineage=lineage, width=width, rollouts=node.op != "draw"
        )
    missing = [given.edge for given in node.inputs if given.edge not in edges]
    roots = {edges[given.edge].root for given in node.inputs if given.edge in edges}
    if missing or len(roots) != 1:
        raise InternalError(f"node {node.name} ({node.op}) reads {missing}, roots {sorted(roots)}")
    read = [edges[given.edge] for given in node.inputs]
    batch_level = node.level == "batch" or node.at_step
    in_batch = batch_level or any(edge.in_batch for edge in read)
    if node.op == "keep":
        if in_batch:
            raise InternalError(f"filter {node.name} reads a value that only a whole batch has")
        kept = edges[node.inputs[0].edge]
        lineage, width, rollouts = kept.lineage, kept.width, kept.rollouts
    elif node.op == "sample":
        prompt = edges[node.inputs[0].edge]
        lineage, width, rollouts = prompt.lineage, prompt.width, True
        if width is None:
            lineage, width = node.name, node.n or 1
        elif (node.n or 1) > 1:
            raise InternalError(f"{node.name} samples more than once per completion")
    else:
        first = next((edge for edge in read if edge.lineage), None)
        lineage = first.lineage if first else None
        per_rollout = node.op in ("logprobs", "score") or node.level == "rollout"
        width = first.width if first and per_rollout else None
        rollouts = False
    root = roots.pop()
    return Edge(
        node=node, root=root, lineage=lineage, width=width, rollouts=rollouts, in_batch=in_batch
    )


def _sources(job: Job, edges: dict[str, Edge], syncs: tuple[Node, ...]) -> tuple[Source, ...]:
    found = []
    nodes = [node for node in job.nodes if node.op in SOURCES]
    for index, node in enumerate(nodes):
        mine = tuple(
            edge.node
            for edge in edges.values()
            if edge.root == node.name and edge.node is not node and not edge.in_batch
        )
        samplers = {each.target for each in mine if each.op == "sample"}
        whole = 1 if node.op == "batches" else job.schedule.prompts
        quota = whole if len(nodes) == 1 or node.op == "batches" else node.count or whole
        refreshed = tuple(sync for sync in syncs if sync.to in samplers)
        found.append(Source(node=node, index=index, quota=quota, nodes=mine, syncs=refreshed))
    return tuple(found)


def _streams(replay: Node, edges: dict[str, Edge]) -> tuple[Stream, ...]:
    """A field goes to the completions it was computed from, or to all if it is one per group."""
    inputs = [(given, edges[given.edge]) for given in replay.inputs]
    streams = []
    for given, edge in inputs:
        if not edge.rollouts or given.attribute is not None:
            continue
        fields = tuple(
            field
            for field, value in inputs
            if (not value.rollouts or field.attribute is not None)
            and value.root == edge.root
            and value.lineage in (edge.lineage, None)
        )
        streams.append(Stream(input=given, fields=fields))
    if not streams:
        raise InternalError(f"replay {replay.name} reads no completions")
    return tuple(streams)
