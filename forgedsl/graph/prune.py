"""Removes unread parts: fields that the loss does not read after folding, their nodes and services.

A node stays if a step, a sync or a score needs it (scores are metrics even if unread). Each dead
field of the loss gives one `Removed`, with the nodes and services that go with it. Nodes that were
never read give another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.graph.legality import services_used
from forgedsl.ir.graph import Node, Removed
from forgedsl.ir.program import Function, Program
from forgedsl.operations.registry import operation
from forgedsl.records import replace
from forgedsl.types.flow import Role


def prune(
    program: Program,
    nodes: tuple[Node, ...],
    reads: Mapping[str, tuple[Function, frozenset[str]]],
) -> tuple[tuple[Node, ...], tuple[Removed, ...]]:
    """Return the live nodes, in order, and the removed parts. `reads` has the loss of each batch,
    with the fields that it reads after folding."""
    nodes = _slim(nodes)
    read_once = _reachable(nodes)
    removed = []
    unread = tuple(node.name for node in nodes if node.name not in read_once)
    nodes = tuple(node for node in nodes if node.name in read_once)
    if unread:
        removed.append(Removed(reason="never read", fields=(), nodes=unread, services=()))
    losses = {name: loss.name for name, (loss, _) in reads.items()}
    dead = [
        (losses[node.name], i.argument)
        for node in nodes
        if Role.PACKS in node.roles
        for i in node.inputs
        if i.argument not in reads[node.name][1] and i.argument != "rollout"
    ]
    for loss, field in dict.fromkeys(dead):
        before = services_used(program, nodes)
        slim = _slim(
            tuple(
                _without(node, field) if losses.get(node.name) == loss else node for node in nodes
            )
        )
        alive = _reachable(slim)
        gone = tuple(node.name for node in slim if node.name not in alive)
        nodes = tuple(node for node in slim if node.name in alive)
        after = services_used(program, nodes)
        removed.append(
            Removed(
                reason=f"loss `{loss}` does not read `{field}`",
                fields=(field,),
                nodes=gone,
                services=tuple(name for name in before if name not in after),
            )
        )
    return nodes, tuple(removed)


def _without(node: Node, field: str) -> Node:
    if Role.PACKS not in node.roles:
        return node
    return replace(node, inputs=tuple(i for i in node.inputs if i.argument != field))


def _slim(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes with each `put` reduced to the fields that some draw reads."""
    return tuple(operation(node.op).slim(node, nodes) for node in nodes)


def _reachable(nodes: tuple[Node, ...]) -> set[str]:
    """Return the names of nodes that a step, a sync, a score or a draw from a buffer needs."""
    by_name = {node.name: node for node in nodes}
    needed = [node.name for node in nodes if operation(node.op).needed]
    seen: set[str] = set()
    while needed:
        name = needed.pop()
        if name not in seen:
            seen.add(name)
            node = by_name[name]
            needed.extend(i.edge for i in node.inputs)
            needed += operation(node.op).needs(node, nodes)
    return seen
