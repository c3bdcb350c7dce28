"""A scene as SVG: self-contained, deterministic, without scripts or fonts to load.

    Scene -> SVG text

Light and dark follow the reader's colour scheme. `figure` is the part that the HTML page embeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from forgedsl.drawing.scene import LINE, PAD, Cluster, Label, Scene, Shape, Wire

PALETTE = ("#3b6fd6", "#2a9d62", "#c26a1b", "#8a55c9", "#b8405e", "#1b8ea6", "#7d8a1e", "#8d6e63")

STYLE = """
  .page { fill: #ffffff } .box { fill: #f7f8fa; stroke: #8a93a3 } .name { fill: #14181f }
  .title, .label { fill: #4a5261 } .wire { stroke: #6b7483 } .tip { fill: #6b7483 }
  .sync { stroke: #b8405e } .synctip, .synclabel { fill: #b8405e }
  .frame { fill: #8a93a3; fill-opacity: 0.06; stroke: #8a93a3; stroke-opacity: 0.7 }
  .frametitle { fill: #4a5261 }
  text { font: 12px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
  .name { font-weight: 700 } .label, .synclabel, .frametitle { font-size: 10.5px }
  .heading { font-size: 14px }
"""
DARK = """
    .page { fill: #14171c } .box { fill: #1e232b; stroke: #5d6776 } .name { fill: #eceff4 }
    .title, .label, .frametitle { fill: #aeb7c4 } .wire { stroke: #8a94a3 } .tip { fill: #8a94a3 }
    .sync { stroke: #f0839b } .synctip, .synclabel { fill: #f0839b }
"""


def scene_svg(scene: Scene) -> str:
    """SVG text, ending in a newline."""
    size = f"{scene.width:.0f} {scene.height:.0f}"
    width, height = size.split()
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(scene.title)}</title>",
            f"<style>{STYLE}  @media (prefers-color-scheme: dark) {{{DARK}  }}\n</style>",
            *markers(""),
            '<rect class="page" width="100%" height="100%"/>',
            *figure(scene, marker=""),
            "</svg>",
        ]
    ) + "\n"  # fmt: skip


def markers(prefix: str) -> Iterator[str]:
    """Return the arrow heads. Their ids get `prefix`, so that a page may contain several
    drawings."""
    shape = 'viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    for name in ("tip", "synctip"):
        yield (
            f'<defs><marker id="{prefix}{name}" {shape}>'
            f'<path class="{name}" d="M0 0 8 4 0 8z"/></marker></defs>'
        )


def figure(scene: Scene, *, marker: str) -> Iterator[str]:
    """Return the content of a scene: frames, wires, boxes, labels."""
    yield f'<text class="name heading" x="28" y="30">{escape(scene.title)}</text>'
    yield from (_cluster(cluster) for cluster in scene.clusters)
    yield from (_wire(wire, marker) for wire in scene.wires)
    yield from (_shape(shape) for shape in scene.shapes)
    yield from (_label(label) for label in scene.labels)


def colour_of(number: int | None) -> str:
    return PALETTE[number % len(PALETTE)] if number is not None else ""


def _cluster(cluster: Cluster) -> str:
    rect, title = cluster.rect, cluster.title_rect
    colour = colour_of(cluster.colour)
    look = f'style="fill:{colour};stroke:{colour}"' if colour else 'stroke-dasharray="5 4"'
    return (
        f'<g class="cluster" id="{escape(cluster.id)}"><rect class="frame" x="{rect.x:.1f}" '
        f'y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}" rx="9" {look}/>'
        f'<text class="frametitle" x="{title.x:.1f}" y="{title.bottom - 2:.1f}">'
        f"{escape(cluster.title)}</text></g>"
    )


def _wire(wire: Wire, marker: str) -> str:
    name, tip, more = ("sync", "synctip", ' stroke-width="1.8" stroke-dasharray="6 4"') if (
        wire.weights
    ) else ("wire", "tip", ' stroke-width="1.4"')  # fmt: skip
    if wire.plain:
        return f'<path class="wire" d="{wire.path}" fill="none" stroke-opacity="0.35"/>'
    return (
        f'<path class="{name}" data-source="{escape(wire.source)}" '
        f'data-target="{escape(wire.target)}" d="{wire.path}" fill="none"{more} '
        f'marker-end="url(#{marker}{tip})"/>'
    )


def _shape(shape: Shape) -> str:
    rect = shape.rect
    parts = [
        f'<g class="node" id="{escape(shape.id)}"><rect class="box" x="{rect.x:.1f}" '
        f'y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}" rx="7"/>'
    ]
    if shape.colour is not None:
        width = min(5.0, rect.width)
        parts.append(
            f'<rect class="stripe" x="{rect.x:.1f}" y="{rect.y:.1f}" width="{width:.0f}" '
            f'height="{rect.height:.1f}" rx="2.5" fill="{colour_of(shape.colour)}"/>'
        )
    middle = rect.x + rect.width / 2
    first = rect.y + (rect.height - LINE * len(shape.lines) + 4) / 2 - PAD
    for i, line in enumerate(shape.lines):
        style = "name" if i == 0 else "title"
        y = first + PAD + LINE * (i + 1) - 7
        parts.append(
            f'<text class="{style}" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">'
            f"{escape(line)}</text>"
        )
    return "".join([*parts, "</g>"])


def _label(label: Label) -> str:
    style = "synclabel" if label.weights else "label"
    return (
        f'<text class="{style}" x="{label.rect.x:.1f}" y="{label.rect.bottom - 2:.1f}">'
        f"{escape(label.text)}</text>"
    )
