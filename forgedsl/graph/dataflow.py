"""Builds the dataflow graph of a resolved program.

    Program.flow -> nodes (levels, streams, ids) -> legality -> dead nodes removed -> edges -> Graph

`build` reports diagnostics and returns None if the flow is not a legal graph. The same program
gives the same ids. An id depends on the operation, its target and its inputs, and not on sizes,
spans or other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.graph import legality
from forgedsl.graph.prune import prune
from forgedsl.ir.graph import Edge, EdgeKind, Graph, Input, Node, Stream
from forgedsl.ir.program import FlowStep, Function, Program, Ref
from forgedsl.losses.infer import infer
from forgedsl.losses.reductions import over_step, over_tokens
from forgedsl.operations.base import Reach, Role
from forgedsl.operations.registry import operation
from forgedsl.records import replace

try:  # hashlib loads OpenSSL, which takes 2 ms
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from hashlib import sha256

FLOW = "train"


def live_fields(loss: Function, reporter: Reporter) -> frozenset[str]:
    """Return the fields that a loss reads after folding (`beta = 0.0` makes `ref` dead).

    If its body has mistakes, which are reported, all declared fields are returned.
    """
    tree = infer(loss, reporter)
    return frozenset(field.name for field in (loss.fields if tree is None else tree.fields))


def build(
    program: Program, *, reporter: Reporter, live: Mapping[str, frozenset[str]] | None = None
) -> Graph | None:
    """Build the pruned dataflow graph of `program`; None after reporting mistakes. `live` has the
    live fields of losses that have been checked already."""
    nodes = _nodes(program)
    if not legality.check_shape(program, nodes, reporter):
        return None
    ordered = _ordered(nodes)
    if ordered is None:
        legality.report_cycle(nodes, reporter)
        return None
    typed = _typed(ordered)
    step = next(node for node in typed if Role.UPDATES in node.roles)
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
    """Convert a setting for the graph: a reference becomes its name."""
    return value.name if isinstance(value, Ref) else value


def _nodes(program: Program) -> tuple[Node, ...]:
    names = [step.name or step.op for step in program.flow]
    nodes = []
    for step, name in zip(program.flow, names, strict=True):
        settings = {key: plain(value.value) for key, value in step.settings.items()}
        if step.name is None and names.count(name) > 1:
            name = f"{name}_{settings.get('target', step.receiver)}"
        nodes.append(_node(program, step, name, settings))
    return tuple(nodes)


def _node(program: Program, step: FlowStep, name: str, settings: Mapping[str, Any]) -> Node:
    unit = operation(step.op)
    inputs = tuple(
        Input(argument=i.argument, edge=i.edge, attribute=i.attribute, span=i.span)
        for i in step.inputs
    )
    node = unit.node(
        Node(
            id="",
            name=name,
            op=step.op,
            target=step.receiver,
            inputs=inputs,
            level=unit.level,
            stream=unit.stream,
            root="",
            samplers=frozenset(),
            settings=settings,
            roles=unit.roles,
            span=step.span,
        )
    )
    if (function := program.functions.get(node.target)) is not None:
        reach = Reach(whole_step=over_step(function), per_token=over_tokens(function))
        node = unit.complete_call(node, reach)
    content = _content(node.op, name, node.target, node.inputs, settings)
    return replace(node, id=f"{FLOW}/{node.name}#{sha256(content.encode()).hexdigest()[:4]}")


NAMED = ("loss", "loss_2", "target", "env", "values", "weight", "observe")


def _content(
    op: str, name: str, target: str, inputs: tuple[Input, ...], settings: Mapping[str, Any]
) -> str:
    """Return a node's content as text, from which its id is hashed. It has names only, so changing
    a size keeps the id.
    """
    reads = ",".join(f"{i.argument}={i.text}" for i in inputs)
    names = ",".join(f"{k}={settings[k]}" for k in NAMED if k in settings)
    return f"{name}:{op}:{target}:{reads}:{names}"


def _ordered(nodes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """Sort nodes topologically, ties in statement order; None if there is a cycle."""
    produced = {node.name for node in nodes}
    after = {node.name: operation(node.op).after(node, nodes) for node in nodes}
    done: set[str] = set()
    ordered: list[Node] = []
    waiting = list(nodes)
    while waiting:
        ready = (
            node
            for node in waiting
            if all(i.edge in done or i.edge not in produced for i in node.inputs)
            and after[node.name] <= done
        )
        node = next(ready, None)
        if node is None:
            return None
        waiting.remove(node)
        ordered.append(node)
        done.add(node.name)
    return tuple(ordered)


def _typed(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Derive level, stream, root, samplers and `at_step` of all nodes from their inputs."""
    by_name: dict[str, Node] = {}
    for node in nodes:
        sources = [by_name[i.edge] for i in node.inputs]
        by_name[node.name] = operation(node.op).typed(node, sources, by_name, nodes)
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
    links = [edge for node in nodes for edge in operation(node.op).links(node, nodes)]
    return (*edges, *sorted(links, key=lambda edge: edge.kind is EdgeKind.REPLAY))


def _edge_type(node: Node, attribute: str | None) -> str:
    if attribute is not None:
        return "per rollout" if node.stream is Stream.ROLLOUT else "per prompt"
    return node.edge_type


def _datasets(program: Program, nodes: tuple[Node, ...]) -> tuple[str, ...]:
    drawn = {node.target for node in nodes if Role.SOURCE in node.roles}
    evaluated = {plain(decl.settings["dataset"].value) for decl in program.evals.values()}
    return tuple(name for name in program.datasets if name in drawn | evaluated)
