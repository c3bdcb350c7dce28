"""The dataflow of a job as inline SVG: columns by distance from the data, boxes coloured by mesh.

    Job.nodes --rank--> columns of boxes --curves--> SVG; a sync is the dashed arrow that goes back
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from forgedsl.lower.job import Job, Node

BOX_W, BOX_H, GAP_X, GAP_Y, PAD = 172, 54, 50, 22, 8


@dataclass(frozen=True, slots=True)
class Placed:
    """A box and its upper left corner."""

    node: Node
    x: float
    y: float


def ranks(nodes: tuple[Node, ...]) -> dict[str, int]:
    """Longest distance of each node from a source; nodes come in dataflow order."""
    rank: dict[str, int] = {}
    for node in nodes:
        before = [rank[given.edge] for given in node.inputs if given.edge in rank]
        rank[node.name] = max(before, default=-1) + 1
    return rank


def place(nodes: tuple[Node, ...]) -> tuple[list[Placed], float, float]:
    """Boxes centred in their columns, and the size of the drawing."""
    rank = ranks(nodes)
    columns: list[list[Node]] = [[] for _ in range(max(rank.values()) + 1)]
    for node in nodes:
        columns[rank[node.name]].append(node)
    tall = max(len(column) for column in columns)
    height = tall * (BOX_H + GAP_Y) - GAP_Y
    placed = []
    for i, column in enumerate(columns):
        top = (height - (len(column) * (BOX_H + GAP_Y) - GAP_Y)) / 2
        for j, node in enumerate(column):
            y = PAD + top + j * (BOX_H + GAP_Y)
            placed.append(Placed(node, PAD + i * (BOX_W + GAP_X), y))
    return placed, len(columns) * (BOX_W + GAP_X) - GAP_X + 2 * PAD, height + 2 * PAD


def colors(job: Job) -> dict[str, str]:
    """A colour class for each service, in the order of the job."""
    return {name: f"c{i % 6 + 1}" for i, name in enumerate(job.services)}


def box(placed: Placed, shade: dict[str, str]) -> str:
    node = placed.node
    title = f"{node.target}.{node.op}" if node.target in shade else node.target or node.op
    count = f"{node.count} per step" if node.count else f"{node.n} each" if node.n else node.op
    note = node.loss or (count if count not in title else node.level)
    x, y = placed.x, placed.y
    return (
        f'<g><rect class="box {shade.get(node.target, "plain")}" x="{x:.0f}" y="{y:.0f}" '
        f'width="{BOX_W}" height="{BOX_H}" rx="8"/>'
        f'<text class="t1" x="{x + 12:.0f}" y="{y + 22:.0f}">{escape(title)}</text>'
        f'<text class="t2" x="{x + 12:.0f}" y="{y + 41:.0f}">'
        f"{escape(node.name)} \u00b7 {escape(note)}</text></g>"
    )


def curve(a: Placed, b: Placed) -> str:
    x1, y1 = a.x + BOX_W, a.y + BOX_H / 2
    x2, y2 = b.x - 3, b.y + BOX_H / 2
    bend = GAP_X * 0.55
    return (
        f'<path class="flow" marker-end="url(#tip)" d="M{x1:.0f} {y1:.0f}'
        f'C{x1 + bend:.0f} {y1:.0f} {x2 - bend:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"/>'
    )


def back(step: Placed, sample: Placed, bottom: float, label: str) -> str:
    """The dashed arrow of a weight sync, below the boxes."""
    x1, y1 = step.x + BOX_W / 2, step.y + BOX_H
    x2, y2 = sample.x + BOX_W / 2, sample.y + BOX_H + 3
    return (
        f'<path class="flow sync" marker-end="url(#tip)" d="M{x1:.0f} {y1:.0f}V{bottom - 10:.0f}'
        f'Q{x1:.0f} {bottom:.0f} {x1 - 10:.0f} {bottom:.0f}H{x2 + 10:.0f}'
        f'Q{x2:.0f} {bottom:.0f} {x2:.0f} {bottom - 10:.0f}V{y2:.0f}"/>'
        f'<text class="t2 mid" x="{(x1 + x2) / 2:.0f}" y="{bottom - 7:.0f}">{escape(label)}</text>'
    )


def topology_svg(job: Job) -> str:
    """Draw the job's dataflow graph."""
    shade = colors(job)
    syncs = [node for node in job.nodes if node.op == "sync"]
    placed, width, height = place(tuple(node for node in job.nodes if node.op != "sync"))
    at = {one.node.name: one for one in placed}
    parts = [
        curve(at[edge], one)
        for one in placed
        for edge in dict.fromkeys(given.edge for given in one.node.inputs)
        if edge in at
    ]
    for i, sync in enumerate(syncs):
        steps = [p for p in placed if p.node.op == "step" and p.node.target == sync.target]
        takers = [p for p in placed if p.node.op == "sample" and p.node.target == sync.to]
        for step in steps:
            for taker in takers:
                label = f"sync {sync.target} \u2192 {sync.to}, every {sync.every}"
                parts.append(back(step, taker, height + 24 + 22 * i, label))
    total = height + (34 + 22 * len(syncs) if syncs else 0)
    parts += [box(one, shade) for one in placed]
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return (
        f'<svg class="topology" viewBox="0 0 {width:.0f} {total:.0f}" role="img" '
        f'aria-label="dataflow graph" style="max-width:{width * 1.1:.0f}px">'
        + tip + "".join(parts) + "</svg>"
    )  # fmt: skip
