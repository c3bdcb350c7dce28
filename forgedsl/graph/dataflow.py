"""From a resolved program to its dataflow graph.

    Program.flow -> nodes (levels, streams, ids) -> legality -> dead nodes removed -> edges -> Graph

`build` reports diagnostics and returns None when the flow is not a legal graph. It is pure: the
program is not changed, and the same program gives the same ids, which depend on what a node is
(operation, target, what it reads) and not on sizes, spans or neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.graph import legality
from forgedsl.graph.ir import Edge, EdgeKind, Graph, Input, Level, Node, Stream, filled
from forgedsl.graph.prune import prune
from forgedsl.hir.ir import FlowStep, Function, Program, Ref
from forgedsl.losses.infer import infer
from forgedsl.losses.reductions import over_step, over_tokens
from forgedsl.records import replace

FLOW = "train"


STREAM_BY_OP = {
    "draw": Stream.PROMPT,
    "batches": Stream.BATCH,
    "pairs": Stream.PAIR,
    "sample": Stream.ROLLOUT,
    "logprobs": Stream.LOGPROB,
    "score": Stream.SCORE,
    "call": Stream.VALUE,
    "mask": Stream.MASK,
    "replay": Stream.BATCH,
    "recall": Stream.ROLLOUT,
    "put": Stream.NOTHING,
    "step": Stream.NOTHING,
    "sync": Stream.NOTHING,
}

LEVEL_BY_OP = {
    "draw": Level.GROUP,
    "batches": Level.BATCH,
    "pairs": Level.GROUP,
    "sample": Level.ROLLOUT,
    "score": Level.ROLLOUT,
    "call": Level.GROUP,
    "mask": Level.GROUP,
    "replay": Level.BATCH,
    "put": Level.BATCH,
    "step": Level.BATCH,
    "sync": Level.BATCH,
}


def live_fields(loss: Function, reporter: Reporter) -> frozenset[str]:
    """The fields a loss reads after folding (`beta = 0.0` makes `ref` dead).

    All that it declares when its body has mistakes, which are reported.
    """
    tree = infer(loss, reporter)
    return frozenset(field.name for field in (loss.fields if tree is None else tree.fields))


def build(
    program: Program, *, reporter: Reporter, live: Mapping[str, frozenset[str]] | None = None
) -> Graph | None:
    """The pruned dataflow graph of `program`, or None after reporting what is wrong. `live` are the
    live fields of losses that are known to be sound."""
    nodes = _nodes(program)
    if not legality.check_shape(program, nodes, reporter):
        return None
    ordered = _ordered(nodes)
    if ordered is None:
        legality.report_cycle(nodes, reporter)
        return None
    typed = _typed(ordered)
    step = next(node for node in typed if node.op == "step")
    reads: dict[str, tuple[Function, frozenset[str]]] = {}
    for name, batches in step.terms:
        loss = program.functions[name]
        fields = (live or {}).get(name)
        fields = live_fields(loss, reporter) if fields is None else fields
        reads |= {batch.edge: (loss, fields) for batch in batches}
    if not legality.check(program, typed, reads, reporter):
        return None
    kept, removed = prune(program, typed, reads)
    for part in removed:
        legality.report_removed(program, part, typed, reporter)
    return Graph(
        flow=FLOW,
        nodes=kept,
        edges=_edges(kept),
        services=legality.services_used(program, kept),
        datasets=_datasets(program, kept),
        trainer=step.target,
        loss=step.settings["loss"],
        removed=removed,
    )


def plain(value: Any) -> Any:
    """A setting as the graph holds it: a reference becomes its name."""
    return value.name if isinstance(value, Ref) else value


def _nodes(program: Program) -> tuple[Node, ...]:
    names = [step.name or step.op for step in program.flow]
    nodes = []
    for step, name in zip(program.flow, names, strict=True):
        settings = {key: plain(value.value) for key, value in step.settings.items()}
        if step.name is None and names.count(name) > 1:
            name = f"{name}_{settings.get('target', step.receiver)}"
        nodes.append(_node(program, step, name, settings))
    return _with_distinct_ids(tuple(nodes))


def _node(program: Program, step: FlowStep, name: str, settings: Mapping[str, Any]) -> Node:
    function = program.functions.get(step.receiver)
    op = "mask" if step.op == "call" and function and function.kind == "filter" else step.op
    if op == "values":  # they come as log-probs do
        op, settings = "logprobs", {**settings, "values": True}
    inputs = tuple(
        Input(argument=i.argument, edge=i.edge, attribute=i.attribute, span=i.span)
        for i in step.inputs
    )
    target = "" if op in ("keep", "replay") else step.receiver
    if op == "keep" and step.receiver and all(i.edge != step.receiver for i in inputs):
        edge = Input(argument="edge", edge=step.receiver, attribute=None, span=step.span)
        inputs = (edge, *inputs)
    level = LEVEL_BY_OP.get(op, Level.ROLLOUT)
    if op == "call" and function and over_step(function):
        level = Level.BATCH
    return Node(
        id=_content(op, name, target, inputs, settings),
        name=name,
        op=op,
        target=target,
        inputs=inputs,
        level=level,
        stream=Stream.LOGPROB
        if op == "call" and function and over_tokens(function)
        else STREAM_BY_OP.get(op, Stream.NOTHING),
        root="",
        samplers=frozenset(),
        settings=settings,
        span=step.span,
    )


NAMED = ("loss", "loss_2", "target", "env", "values", "weight", "observe")


def _content(
    op: str, name: str, target: str, inputs: tuple[Input, ...], settings: Mapping[str, Any]
) -> str:
    """What a node is, as text: names only, so that a change of a size changes no id."""
    reads = ",".join(f"{i.argument}={i.text}" for i in inputs)
    names = ",".join(f"{k}={settings[k]}" for k in NAMED if k in settings)
    return f"{name}:{op}:{target}:{reads}:{names}"


def _with_distinct_ids(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    digests = [sha256(node.id.encode()).hexdigest() for node in nodes]
    return tuple(
        replace(node, id=f"{FLOW}/{node.name}#{digest[:4]}")
        for node, digest in zip(nodes, digests, strict=True)
    )


def _ordered(nodes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """Topological order, statement order where it is free; None if there is a cycle."""
    produced = {node.name for node in nodes}
    put = filled(nodes)
    done: set[str] = set()
    ordered: list[Node] = []
    waiting = list(nodes)
    while waiting:
        after_step = not any(n.op == "step" for n in waiting)
        ready = (
            node
            for node in waiting
            if all(i.edge in done or i.edge not in produced for i in node.inputs)
            and (node.op != "sync" or after_step)
            and (node.op != "recall" or put[node.target] in done)
        )
        node = next(ready, None)
        if node is None:
            return None
        waiting.remove(node)
        ordered.append(node)
        done.add(node.name)
    return tuple(ordered)


def _typed(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes with their level, stream, root, samplers and `at_step`, from those of their inputs."""
    trained = {node.target for node in nodes if node.op == "step"}
    put = filled(nodes)
    by_name: dict[str, Node] = {}
    for node in nodes:
        sources = [by_name[i.edge] for i in node.inputs]
        first = sources[0] if sources else None
        new = replace(node, at_step=node.op == "logprobs" and node.target in trained)
        if first is None:
            new = replace(new, root="" if node.op == "sync" else node.name)
            if node.op == "recall":  # what was drawn before by others
                new = replace(new, samplers=by_name[put[node.target]].samplers)
        else:
            samplers = frozenset[str]().union(*(source.samplers for source in sources))
            if node.op == "sample":
                samplers = frozenset({node.name})
            new = replace(new, root=first.root, samplers=samplers)
        if node.op == "keep" and first is not None:
            new = replace(new, stream=first.stream, level=first.level)
        elif node.op == "logprobs" and first is not None:
            new = replace(new, level=first.level)
        by_name[node.name] = new
    return tuple(by_name[node.name] for node in nodes)


def _edges(nodes: tuple[Node, ...]) -> tuple[Edge, ...]:
    by_name = {node.name: node for node in nodes}
    edges = [
        Edge(
            source=by_name[i.edge].id,
            target=node.id,
            kind=EdgeKind.DATA,
            label=i.text,
            attribute=i.attribute,
            type=_edge_type(by_name[i.edge], i.attribute),
        )
        for node in nodes
        for i in node.inputs
    ]
    for sync in (node for node in nodes if node.op == "sync"):
        step = next(node for node in nodes if node.op == "step")
        edges.append(_plain_edge(step, sync, EdgeKind.CONTROL, "version"))
        readers = [n for n in nodes if n.op == "sample" and n.target == sync.settings["target"]]
        edges += [_plain_edge(sync, reader, EdgeKind.WEIGHTS, "weights") for reader in readers]
    for recall in (node for node in nodes if node.op == "recall"):
        put = next(n for n in nodes if n.op == "put" and n.target == recall.target)
        edges.append(_plain_edge(put, recall, EdgeKind.REPLAY, recall.target))
    return tuple(edges)


def _plain_edge(source: Node, target: Node, kind: EdgeKind, label: str) -> Edge:
    return Edge(source=source.id, target=target.id, kind=kind, label=label, attribute=None, type="")


def _edge_type(node: Node, attribute: str | None) -> str:
    if attribute is not None:
        return "per rollout" if node.stream is Stream.ROLLOUT else "per prompt"
    return {
        Stream.PROMPT: "Stream[Prompt]",
        Stream.PAIR: "Stream[Pair]",
        Stream.ROLLOUT: "Stream[Group[Rollout]]",
        Stream.LOGPROB: "[B, T] f32",
        Stream.SCORE: "[G] f32",
        Stream.VALUE: "[B] f32" if node.level is Level.BATCH else "[G] f32",
        Stream.MASK: "bool",
        Stream.BATCH: "Batch",
    }[node.stream]


def _datasets(program: Program, nodes: tuple[Node, ...]) -> tuple[str, ...]:
    drawn = {node.target for node in nodes if node.op in ("draw", "batches", "pairs")}
    evaluated = {plain(decl.settings["dataset"].value) for decl in program.evals.values()}
    return tuple(name for name in program.datasets if name in drawn | evaluated)
