"""Ranks of a graph: the distance of each node from a source, its column in every drawing."""

from __future__ import annotations

from forgedsl.ir.graph import EdgeKind, Graph


def ranks(graph: Graph) -> dict[str, int]:
    """Longest distance of each node from a source, over data edges."""
    rank = dict.fromkeys((node.id for node in graph.nodes), 0)
    for node in graph.nodes:
        for edge in graph.edges:
            if edge.target == node.id and edge.kind is EdgeKind.DATA:
                rank[node.id] = max(rank[node.id], rank[edge.source] + 1)
    return rank
