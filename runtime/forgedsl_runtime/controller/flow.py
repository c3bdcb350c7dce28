"""The static view of `Job.nodes` that the executor works from.

    Job.nodes --analyse--> Flow: sources, edges, and in which phase each node fires

The output of a node is an edge, named like the node; `replay`, `step`, `sync` and `put` have none.
Each edge belongs to one *root* (the source whose groups it is computed for). Values that exist once
per completion have a *lineage* (the statement that made the completions) and a *width* (how many
per group). Nodes fire in one of two phases: *group* (as soon as the inputs of that group are there)
or *batch* (on the groups of an assembled batch: batch-level functions, log-probs under the weights
before the step, and whatever reads those). The first input of `sample` is the prompt; the first
input of `logprobs`, `score` and `keep` is the completions. The second input of `score` is the
target, that of `keep` the mask. `call` and `mask` read all inputs by argument name, `replay` and
`put` read their fields by argument name; no other operation does. A draw from a buffer (`recall`)
is a root too; all of its nodes fire in the batch phase, because its groups are drawn when the fresh
groups of a step are ready.
"""

from __future__ import annotations

from forgedsl.errors import InternalError
from forgedsl.lower.job import Job, Node
from forgedsl.types.flow import Role
from forgedsl_runtime.flow import Edge, Flow, Source, Stream
from forgedsl_runtime.operations.registry import operation_of


def analyse(job: Job) -> Flow:
    """Compute roots, lineages, phases and replay fields. Nodes come in topological order."""
    edges: dict[str, Edge] = {}
    offsets: dict[str, int] = {}
    next_offset: dict[str, int] = {}
    for node in job.nodes:
        operation = operation_of(node.op)
        if operation.fires in ("end", "store"):
            continue
        missing = [given.edge for given in node.inputs if given.edge not in edges]
        if missing:
            raise InternalError(f"node {node.name} ({node.op}) reads {missing}")
        read = [edges[given.edge] for given in node.inputs]
        edges[node.name] = edge = operation.edge(node, read, job, edges)
        if edge.rollouts and edge.lineage == node.name and operation.fires == "completion":
            offsets[node.name] = next_offset.get(edge.root, 0)
            next_offset[edge.root] = offsets[node.name] + (edge.width or 1)
    replays, steps, syncs = (
        tuple(node for node in job.nodes if role in node.roles)
        for role in (Role.PACKS, Role.UPDATES, Role.TRANSFERS)
    )
    drawn = [node for node in job.nodes if operation_of(node.op).fires == "stored"]
    return Flow(
        edges=edges,
        sources=_sources(job, edges, syncs),
        batch_nodes=tuple(
            edge.node for edge in edges.values() if edge.in_batch and edge.node not in drawn
        ),
        replays={node.name: _streams(node, edges) for node in replays},
        steps=steps,
        syncs=syncs,
        scores=tuple(node for node in job.nodes if Role.SCORES in node.roles),
        recalls=tuple(
            Source(node=node, index=index, quota=node.count or 1, nodes=(), syncs=())
            for index, node in enumerate(drawn)
        ),
        stores=tuple(node for node in job.nodes if operation_of(node.op).fires == "store"),
        offsets=offsets,
    )


def _sources(job: Job, edges: dict[str, Edge], syncs: tuple[Node, ...]) -> tuple[Source, ...]:
    found = []
    nodes = [node for node in job.nodes if operation_of(node.op).fires == "source"]
    for index, node in enumerate(nodes):
        mine = tuple(
            edge.node
            for edge in edges.values()
            if edge.root == node.name and edge.node is not node and not edge.in_batch
        )
        samplers = {each.target for each in mine if Role.SAMPLES in each.roles}
        whole = 1 if Role.SUPERVISED in node.roles else job.schedule.prompts
        quota = whole if len(nodes) == 1 or Role.SUPERVISED in node.roles else node.count or whole
        refreshed = tuple(sync for sync in syncs if sync.to in samplers)
        found.append(Source(node=node, index=index, quota=quota, nodes=mine, syncs=refreshed))
    return tuple(found)


def _streams(replay: Node, edges: dict[str, Edge]) -> tuple[Stream, ...]:
    """Assign fields to completion inputs: a field belongs to the completions that it was computed
    from; a field with one value per group belongs to all."""
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
        raise InternalError(f"replay {replay.name} reads a stream without completions")
    return tuple(streams)
