"""The graph as a self-contained SVG: boxes coloured by mesh, the weight sync as an arc below.

    Picture -> sizes -> layered layout -> SVG text (deterministic, no fonts or scripts to load)

Light and dark follow the reader's colour scheme.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from forgedsl.graph.ir import EdgeKind
from forgedsl.graph.layout import Layout, Placed, layered
from forgedsl.graph.picture import Arrow, Box, Picture

CHAR, LINE, PAD = 7.3, 17.0, 11.0
MARGIN, LEGEND = 24.0, 22.0
PALETTE = ("#3b6fd6", "#2a9d62", "#c26a1b", "#8a55c9", "#b8405e", "#1b8ea6", "#7d8a1e", "#8d6e63")

STYLE = """
  .page { fill: #ffffff } .box { fill: #f7f8fa; stroke: #8a93a3 } .name { fill: #14181f }
  .title, .label, .legend { fill: #4a5261 } .wire { stroke: #6b7483 } .tip { fill: #6b7483 }
  .sync { stroke: #b8405e } .synctip, .synclabel { fill: #b8405e } .halo { stroke: #ffffff }
  text { font: 12px ui-monospace, Menlo, Consolas, monospace }
  .name { font-weight: 700 } .label, .synclabel { font-size: 10.5px } .heading { font-size: 14px }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14171c } .box { fill: #1e232b; stroke: #5d6776 } .name { fill: #eceff4 }
    .title, .label, .legend { fill: #aeb7c4 } .wire { stroke: #8a94a3 } .tip { fill: #8a94a3 }
    .sync { stroke: #f0839b } .synctip, .synclabel { fill: #f0839b } .halo { stroke: #14171c }
  }
"""


def render_svg(picture: Picture) -> str:
    """SVG text, ending in a newline."""
    data = [arrow for arrow in picture.arrows if arrow.kind is EdgeKind.DATA]
    syncs = [arrow for arrow in picture.arrows if arrow.kind is EdgeKind.WEIGHTS]
    sizes = {box.id: _size(box) for box in picture.boxes}
    layout = layered(
        sizes,
        _ranks(picture.boxes, data),
        [(arrow.source, arrow.target) for arrow in data],
        gap_x=28.0 + CHAR * max((len(arrow.label) for arrow in data), default=0),
        gap_y=26.0,
    )
    colour = {group.name: PALETTE[i % len(PALETTE)] for i, group in enumerate(picture.groups)}
    top = MARGIN + 30.0
    below = top + layout.height
    body = [_wire(a, route, sizes) for a, route in zip(data, layout.routes, strict=True)]
    body += [_sync(arrow, layout, sizes, i) for i, arrow in enumerate(syncs)]
    body += [_box(box, layout.boxes[box.id], sizes[box.id], colour) for box in picture.boxes]
    depth = 58.0 + 26.0 * (len(syncs) - 1) if syncs else 0.0
    legend_top = below + depth + MARGIN
    legend = [
        _legend(group.title, colour[group.name], legend_top + LEGEND * i)
        for i, group in enumerate(picture.groups)
    ]
    longest = max((len(group.title) for group in picture.groups), default=0)
    width = max(layout.width, CHAR * longest + 24.0, CHAR * 1.2 * len(picture.title)) + 2 * MARGIN
    height = legend_top + LEGEND * len(picture.groups) + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img">',
            f"<title>{escape(picture.title)}</title>",
            f"<style>{STYLE}</style>",
            *_markers(),
            '<rect class="page" width="100%" height="100%"/>',
            f'<text class="name heading" x="{MARGIN:.0f}" y="{MARGIN + 8:.0f}">'
            f"{escape(picture.title)}</text>",
            f'<g transform="translate({MARGIN:.0f} {top:.0f})">',
            *body,
            "</g>",
            *legend,
            "</svg>",
        ]
    ) + "\n"  # fmt: skip


def _size(box: Box) -> tuple[float, float]:
    lines = _lines(box)
    return 2 * PAD + CHAR * max(map(len, lines)), 2 * PAD + LINE * len(lines) - 4


def _lines(box: Box) -> list[str]:
    return [line for line in (box.name, box.title, box.note) if line]


def _ranks(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Longest distance from a source; boxes come in topological order."""
    rank = {box.id: 0 for box in boxes}
    for box in boxes:
        ends = [rank[arrow.source] + 1 for arrow in arrows if arrow.target == box.id]
        rank[box.id] = max(ends, default=0)
    return rank


def _markers() -> list[str]:
    shape = 'viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return [
        f'<defs><marker id="tip" {shape}><path class="tip" d="M0 0 8 4 0 8z"/></marker>',
        f'<marker id="synctip" {shape}><path class="synctip" d="M0 0 8 4 0 8z"/></marker></defs>',
    ]


def _wire(arrow: Arrow, route: Sequence[Placed], sizes: dict[str, tuple[float, float]]) -> str:
    start, end = route[0], route[-1]
    points = [
        (start.x + sizes[arrow.source][0] / 2, start.y),
        *((point.x, point.y) for point in route[1:-1]),
        (end.x - sizes[arrow.target][0] / 2 - 2, end.y),
    ]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (x0 + x1) / 2
        path += f"C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    # the label sits on the first stretch, where arrows of one source have not met yet
    (x0, y0), (x1, y1) = points[0], points[1]
    x, y = (x0 + x1) / 2, (y0 + y1) / 2 - 5
    return (
        f'<path class="wire" d="{path}" fill="none" stroke-width="1.4" marker-end="url(#tip)"/>'
        f'<text class="label halo" x="{x:.1f}" y="{y:.1f}" text-anchor="middle" '
        f'stroke-width="4" paint-order="stroke">{escape(arrow.label)}</text>'
    )


def _sync(arrow: Arrow, layout: Layout, sizes: dict[str, tuple[float, float]], number: int) -> str:
    start, end = layout.boxes[arrow.source], layout.boxes[arrow.target]
    y0 = start.y + sizes[arrow.source][1] / 2
    y1 = end.y + sizes[arrow.target][1] / 2 + 2
    low = layout.height + 30.0 + 26.0 * number
    path = f"M{start.x:.1f} {y0:.1f}V{low - 8:.1f}q0 8 -8 8H{end.x + 8:.1f}q-8 0 -8 -8V{y1:.1f}"
    middle = (start.x + end.x) / 2
    return (
        f'<path class="sync" d="{path}" fill="none" stroke-width="1.8" stroke-dasharray="6 4" '
        f'marker-end="url(#synctip)"/><text class="synclabel" x="{middle:.1f}" '
        f'y="{low + 15:.1f}" text-anchor="middle">weights: {escape(arrow.label)}</text>'
    )


def _box(box: Box, place: Placed, size: tuple[float, float], colour: dict[str, str]) -> str:
    left, top = place.x - size[0] / 2, place.y - size[1] / 2
    parts = [
        f'<g id="{escape(box.id)}"><rect class="box" x="{left:.1f}" y="{top:.1f}" '
        f'width="{size[0]:.1f}" height="{size[1]:.1f}" rx="7"/>'
    ]
    if box.group:
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="5" height="{size[1]:.1f}" rx="2.5" '
            f'fill="{colour[box.group]}"/>'
        )
    for i, line in enumerate(_lines(box)):
        style = "name" if i == 0 else "title"
        y = top + PAD + LINE * (i + 1) - 7
        parts.append(
            f'<text class="{style}" x="{place.x:.1f}" y="{y:.1f}" text-anchor="middle">'
            f"{escape(line)}</text>"
        )
    return "".join([*parts, "</g>"])


def _legend(title: str, colour: str, y: float) -> str:
    return (
        f'<rect x="{MARGIN:.0f}" y="{y:.1f}" width="12" height="12" rx="3" fill="{colour}"/>'
        f'<text class="legend" x="{MARGIN + 20:.0f}" y="{y + 10.5:.1f}">{escape(title)}</text>'
    )
