"""How many items each node works on at once, and how many each edge may hold.

Credits bound everything: no more than B groups are alive, so an edge of groups never holds more
than B and needs no lock of its own; an edge of batches holds one. Slots say how much of that a node
takes up at once: a sampler everything (the engine batches continuously), a scorer everything
(rewards start as rollouts finish, the pool is the limit), a frozen model everything too (its
client sends what waits in one call), the trainer one batch.
"""

from __future__ import annotations

from forgedsl.graph.ir import Graph, Level, Node
from forgedsl.plan.staleness import Staleness

PREFETCH = 2


def slots_of(node: Node, staleness: Staleness) -> int:
    """Groups (or batches) that `node` works on at once."""
    if node.op == "batches":
        return PREFETCH
    if node.op in ("sample", "score") or (node.op == "logprobs" and not node.at_step):
        return staleness.credits
    return 1


def capacities(graph: Graph, staleness: Staleness) -> dict[str, int]:
    """Items an edge may hold, by the name of the node that produces it."""
    return {
        node.name: PREFETCH
        if node.op == "batches"
        else int(node.settings["count"])
        if node.op == "recall"
        else 1
        if node.level is Level.BATCH
        else staleness.credits
        for node in graph.nodes
        if node.stream
    }
