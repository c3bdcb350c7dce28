"""A layered layout: ranks by longest path, order by barycentre, coordinates from sizes.

    boxes with sizes + edges -> positions of boxes and bends of edges

Deterministic: no randomness, ties keep the order given. An edge over several ranks gets one
invisible box per rank in between, so that edges do not run through boxes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forgedsl.graph.ir import EdgeKind, Graph

SWEEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Centre of a box."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Box centres by id, the points of each edge in the order given, and the size of the whole."""

    boxes: Mapping[str, Placed]
    routes: tuple[tuple[Placed, ...], ...]
    width: float
    height: float


def ranks(graph: Graph) -> dict[str, int]:
    """Longest distance of each node from a source, over data edges."""
    rank = dict.fromkeys((node.id for node in graph.nodes), 0)
    for node in graph.nodes:
        for edge in graph.edges:
            if edge.target == node.id and edge.kind is EdgeKind.DATA:
                rank[node.id] = max(rank[node.id], rank[edge.source] + 1)
    return rank


def layered(
    sizes: Mapping[str, tuple[float, float]],
    rank: Mapping[str, int],
    edges: Sequence[tuple[str, str]],
    *,
    gap_x: float,
    gap_y: float,
) -> Layout:
    """Place boxes left to right by rank; `edges` go from lower to higher ranks."""
    sizes = dict(sizes)
    rank = dict(rank)
    chains = [_split(edge, number, rank, sizes) for number, edge in enumerate(edges)]
    links = [pair for chain in chains for pair in itertools.pairwise(chain)]
    columns = _ordered(rank, links)
    xs = _columns_x(columns, sizes, gap_x)
    ys = _columns_y(columns, sizes, links, gap_y)
    placed = {box: Placed(x=xs[rank[box]], y=ys[box]) for box in rank}
    right = max(placed[box].x + sizes[box][0] / 2 for box in rank)
    bottom = max(placed[box].y + sizes[box][1] / 2 for box in rank)
    return Layout(
        boxes=placed,
        routes=tuple(tuple(placed[box] for box in chain) for chain in chains),
        width=right,
        height=bottom,
    )


def _split(
    edge: tuple[str, str],
    number: int,
    rank: dict[str, int],
    sizes: dict[str, tuple[float, float]],
) -> list[str]:
    """The boxes an edge passes, with invisible ones added to `rank` and `sizes`."""
    source, target = edge
    chain = [source]
    for level in range(rank[source] + 1, rank[target]):
        dummy = f"\0{number}:{level}"
        rank[dummy] = level
        sizes[dummy] = (0.0, 12.0)
        chain.append(dummy)
    return [*chain, target]


def _ordered(rank: Mapping[str, int], links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Boxes per rank, reordered by the mean position of their neighbours, fewest crossings kept."""
    columns: list[list[str]] = [[] for _ in range(1 + max(rank.values(), default=0))]
    for box, level in rank.items():
        columns[level].append(box)
    before: dict[str, list[str]] = {box: [] for box in rank}
    after: dict[str, list[str]] = {box: [] for box in rank}
    for source, target in links:
        after[source].append(target)
        before[target].append(source)
    best, fewest = [list(c) for c in columns], _crossings(columns, links)
    for sweep in range(SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        order = columns[1:] if sweep % 2 == 0 else columns[-2::-1]
        for column in order:
            index = {box: i for other in columns for i, box in enumerate(other)}
            column.sort(key=lambda box: _mean([index[n] for n in neighbours[box]], index[box]))
        crossings = _crossings(columns, links)
        if crossings < fewest:
            best, fewest = [list(c) for c in columns], crossings
    return best


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _crossings(columns: Sequence[Sequence[str]], links: Sequence[tuple[str, str]]) -> int:
    level = {box: i for i, column in enumerate(columns) for box in column}
    index = {box: i for column in columns for i, box in enumerate(column)}
    total = 0
    for number, (a, b) in enumerate(links):
        for c, d in links[number + 1 :]:
            if level[a] == level[c]:
                total += (index[a] - index[c]) * (index[b] - index[d]) < 0
    return total


def _columns_x(
    columns: Sequence[Sequence[str]], sizes: Mapping[str, tuple[float, float]], gap: float
) -> list[float]:
    xs = []
    left = 0.0
    for column in columns:
        width = max((sizes[box][0] for box in column), default=0.0)
        xs.append(left + width / 2)
        left += width + gap
    return xs


def _columns_y(
    columns: Sequence[Sequence[str]],
    sizes: Mapping[str, tuple[float, float]],
    links: Sequence[tuple[str, str]],
    gap: float,
) -> dict[str, float]:
    """Stack each column, then pull boxes towards their neighbours without overlap."""
    ys: dict[str, float] = {}
    for column in columns:
        top = 0.0
        for box in column:
            ys[box] = top + sizes[box][1] / 2
            top += sizes[box][1] + gap
    neighbours: dict[str, list[str]] = {box: [] for box in ys}
    for source, target in links:
        neighbours[source].append(target)
        neighbours[target].append(source)
    for _ in range(SWEEPS):
        for column in columns:
            wanted = [_mean([ys[n] for n in neighbours[box]], ys[box]) for box in column]
            _spread(column, wanted, sizes, gap, ys)
    lowest = min((ys[box] - sizes[box][1] / 2 for box in ys), default=0.0)
    return {box: y - lowest for box, y in ys.items()}


def _spread(
    column: Sequence[str],
    wanted: Sequence[float],
    sizes: Mapping[str, tuple[float, float]],
    gap: float,
    ys: dict[str, float],
) -> None:
    """Put boxes near the wanted heights, in order and apart: once down, then shift by the mean."""
    placed: list[float] = []
    bottom = float("-inf")
    for box, y in zip(column, wanted, strict=True):
        half = sizes[box][1] / 2
        placed.append(max(y, bottom + half))
        bottom = placed[-1] + half + gap
    shift = _mean([w - p for w, p in zip(wanted, placed, strict=True)], 0.0)
    for box, y in zip(column, placed, strict=True):
        ys[box] = y + shift
