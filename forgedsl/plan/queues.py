"""How many items each node works on at once, and how many each edge may hold.

Credits bound everything: no more than B groups are alive, so an edge of groups never holds more
than B and needs no lock of its own; an edge of batches holds one. Slots say how much of that a node
takes up at once: a sampler everything (the engine batches continuously), a scorer everything
(rewards start as rollouts finish, the pool is the limit), a frozen model everything too (its
client sends what waits in one call), the trainer one batch.
"""

from __future__ import annotations

from forgedsl.ir.graph import Graph, Node
from forgedsl.operations.registry import operation
from forgedsl.plan.staleness import Staleness


def slots_of(node: Node, staleness: Staleness) -> int:
    """Groups (or batches) that `node` works on at once."""
    return operation(node.op).slots(node, staleness.credits)


def capacities(graph: Graph, staleness: Staleness) -> dict[str, int]:
    """Items an edge may hold, by the name of the node that produces it."""
    return {
        node.name: operation(node.op).queue(node, staleness.credits)
        for node in graph.nodes
        if node.stream
    }
