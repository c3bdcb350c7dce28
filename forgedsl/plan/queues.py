"""Queue sizes: items that each node works on at once, and items that each edge may hold.

At most B groups are alive (credits), so an edge of groups never holds more than B and needs no
limit of its own. An edge of batches holds one. Slots are the items that a node works on at once. A
sampler takes all: the engine batches continuously. A scorer takes all: rewards start as rollouts
finish, and the process pool is the limit. A frozen model takes all: its client sends the queue in
one call. The trainer takes one batch.
"""

from __future__ import annotations

from forgedsl.ir.graph import Graph, Node
from forgedsl.operations.registry import operation
from forgedsl.plan.staleness import Staleness


def slots_of(node: Node, staleness: Staleness) -> int:
    """Return the number of groups (or batches) that `node` works on at once."""
    return operation(node.op).slots(node, staleness.credits)


def capacities(graph: Graph, staleness: Staleness) -> dict[str, int]:
    """Return the number of items that each edge may hold, by the name of the node that produces
    it."""
    return {
        node.name: operation(node.op).queue(node, staleness.credits)
        for node in graph.nodes
        if node.stream
    }
