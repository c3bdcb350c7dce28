"""The dataflow of a job as inline SVG: columns by distance from the data, boxes coloured by mesh.

Job.nodes --rank--> columns of boxes --curves--> SVG; a sync is the dashed arrow that goes back
"""

from __future__ import annotations

import itertools
from html import escape

from forgedsl.lower.job import Job, Node
from forgedsl.operations.registry import operation
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

BOX_W, BOX_H, LANE_H, GAP_X, GAP_Y, PAD = 172, 54, 4, 50, 20, 8
TITLE = 22
"""maximum characters of a box's title"""


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box and its upper left corner. `node` is None for the lane of a long edge in a column."""

    node: Node | None
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.y + (BOX_H if self.node else LANE_H) / 2


@dataclass(frozen=True, slots=True)
class Drawing:
    """Positions of all boxes; a route is the list of points of an edge."""

    places: dict[str, PlacedBox]
    routes: list[list[str]]
    width: float
    height: float


def ranks(nodes: tuple[Node, ...]) -> dict[str, int]:
    """Longest distance of each node from a source; nodes come in dataflow order."""
    rank: dict[str, int] = {}
    for node in nodes:
        before = [rank[given.edge] for given in node.inputs if given.edge in rank]
        rank[node.name] = max(before, default=-1) + 1
    return rank


def place(nodes: tuple[Node, ...]) -> Drawing:
    """Place boxes in columns, each near its inputs. An edge over several columns gets a lane in
    each column between, so that it does not cross boxes."""
    rank = ranks(nodes)
    by_name = {node.name: node for node in nodes}
    columns: list[list[str]] = [[] for _ in range(max(rank.values()) + 1)]
    before: dict[str, list[str]] = {node.name: [] for node in nodes}
    routes = []
    for node in nodes:
        columns[rank[node.name]].append(node.name)
        for edge in dict.fromkeys(given.edge for given in node.inputs if given.edge in rank):
            lanes = [f"{edge}>{node.name}:{i}" for i in range(rank[edge] + 1, rank[node.name])]
            route = [edge, *lanes, node.name]
            for i, lane in enumerate(lanes):
                columns[rank[edge] + 1 + i].append(lane)
                before[lane] = []
            for near, far in itertools.pairwise(route):
                before[far].append(near)
            routes.append(route)
    places: dict[str, PlacedBox] = {}
    for i, column in enumerate(columns):
        wish = {
            name: sum(places[n].middle for n in before[name]) / max(len(before[name]), 1)
            for name in column
        }
        column.sort(key=wish.__getitem__)
        heights = [BOX_H if name in by_name else LANE_H for name in column]
        total = sum(heights) + GAP_Y * (len(column) - 1)
        y = sum(wish.values()) / len(wish) - total / 2
        for name, height in zip(column, heights, strict=True):
            places[name] = PlacedBox(by_name.get(name), PAD + i * (BOX_W + GAP_X), y)
            y += height + GAP_Y
    top = min(p.y for p in places.values()) - PAD
    places = {name: PlacedBox(p.node, p.x, p.y - top) for name, p in places.items()}
    bottom = max(p.y + (BOX_H if p.node else LANE_H) for p in places.values())
    width = len(columns) * (BOX_W + GAP_X) - GAP_X + 2 * PAD
    return Drawing(places, routes, width, bottom + PAD)


def colors(job: Job) -> dict[str, str]:
    """Return a colour class for each service, in the order of the job."""
    return {name: f"c{i % 6 + 1}" for i, name in enumerate(job.services)}


def words(node: Node, shade: dict[str, str]) -> tuple[str, str]:
    """Return (title, note) of a box: the service or function, then its output and amount."""
    target = node.target.removeprefix("advantage_").removeprefix("filter_")
    unit = operation(node.op)
    method = unit.method or unit.name
    owned = node.target in shade or unit.declares is not None
    title = f"{target}.{method}" if owned else target or method
    size = f"{node.count} per step" if node.count else f"{node.n} each" if node.n else node.loss
    note = f"{node.name} \u00b7 {size}" if size else node.name
    return (title if len(title) <= TITLE else title[: TITLE - 1] + "\u2026"), note


def box(node: Node, x: float, y: float, shade: dict[str, str]) -> str:
    title, note = words(node, shade)
    return (
        f'<g><rect class="box {shade.get(node.target, "plain")}" x="{x:.0f}" y="{y:.0f}" '
        f'width="{BOX_W}" height="{BOX_H}" rx="8"/>'
        f'<text class="t1" x="{x + 12:.0f}" y="{y + 22:.0f}">{escape(title)}</text>'
        f'<text class="t2" x="{x + 12:.0f}" y="{y + 41:.0f}">'
        f"{escape(note)}</text></g>"
    )


def curve(route: list[PlacedBox]) -> str:
    """Draw a smooth line from the right side of a box to the left side of another."""
    first, *others = route
    path = f"M{first.x + BOX_W:.0f} {first.middle:.0f}"
    y = first.middle
    bend = GAP_X * 0.55
    for one in others:
        x, end = one.x - (3 if one.node else 0), one.middle
        start = one.x - GAP_X
        path += f"C{start + bend:.0f} {y:.0f} {x - bend:.0f} {end:.0f} {x:.0f} {end:.0f}"
        if one.node is None:
            path += f"H{one.x + BOX_W:.0f}"
        y = end
    return f'<path class="flow" marker-end="url(#tip)" d="{path}"/>'


def back(step: PlacedBox, sample: PlacedBox, bottom: float, label: str) -> str:
    """Draw the dashed arrow of a weight sync or a replay, below the boxes."""
    x1, y1 = step.x + BOX_W / 2, step.y + BOX_H
    x2, y2 = sample.x + BOX_W / 2, sample.y + BOX_H + 3
    return (
        f'<path class="flow sync" marker-end="url(#tip)" d="M{x1:.0f} {y1:.0f}V{bottom - 10:.0f}'
        f"Q{x1:.0f} {bottom:.0f} {x1 - 10:.0f} {bottom:.0f}H{x2 + 10:.0f}"
        f'Q{x2:.0f} {bottom:.0f} {x2:.0f} {bottom - 10:.0f}V{y2:.0f}"/>'
        f'<text class="t2 mid" x="{(x1 + x2) / 2:.0f}" y="{bottom - 7:.0f}">{escape(label)}</text>'
    )


def topology_svg(job: Job) -> str:
    """Draw the job's dataflow graph."""
    shade = colors(job)
    syncs = [node for node in job.nodes if Role.TRANSFERS in node.roles]
    drawing = place(tuple(node for node in job.nodes if Role.TRANSFERS not in node.roles))
    boxes = [(one.node, one) for one in drawing.places.values() if one.node is not None]
    parts = [curve([drawing.places[name] for name in route]) for route in drawing.routes]
    ways = [
        (Role.UPDATES, s.target, Role.SAMPLES, s.to,
         f"sync {s.target} \u2192 {s.to}, every {s.every}")
        for s in syncs
    ]  # fmt: skip
    stored = [node.target for node in job.nodes if Role.RECALLS in node.roles]
    ways += [(Role.STORES, name, Role.RECALLS, name, f"{name}: in later steps") for name in stored]
    for i, (ends, source, begins, target, label) in enumerate(ways):
        ups = [p for node, p in boxes if ends in node.roles and node.target == source]
        downs = [p for node, p in boxes if begins in node.roles and node.target == target]
        bottom = drawing.height + 24 + 22 * i
        parts += [back(up, down, bottom, label) for up in ups for down in downs]
    width, total = drawing.width, drawing.height + (34 + 22 * len(ways) if ways else 0)
    parts += [box(node, p.x, p.y, shade) for node, p in boxes]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return (
        f'<svg class="topology" viewBox="0 0 {width:.0f} {total:.0f}" role="img" '
        f'aria-label="dataflow graph" style="max-width:{width * 1.1:.0f}px">'
        + tip + "".join(parts) + "</svg>"
    )  # fmt: skip
