"""Renders all views as a self-contained HTML file, without network, fonts or external scripts.

    scenes + sources -> HTML (pan, zoom, hover, click through to the declaration, keyboard, dark)

The file is deterministic: the same program gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from forgedsl.drawing.render_svg import figure, markers
from forgedsl.drawing.scene import Cluster, Scene, Shape, Wire
from forgedsl.source import SourceFile

DARK = (
    "--page: #14171c; --panel: #1a1e25; --line: #2e343e; --ink: #eceff4; --soft: #aeb7c4; "
    "--box: #1e232b; --edge: #5d6776; --wire: #8a94a3; --sync: #f0839b; --mark: #3a3520; "
    "--focus: #6ea0ff; color-scheme: dark;"
)


def render_html(
    scenes: Mapping[str, Scene],
    sources: Sequence[SourceFile],
    *,
    first: str,
    title: str,
    facts: Sequence[tuple[str, str]],
) -> str:
    """The page; `scenes` by name of their view, `first` is shown at the start."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    items = {name: _items(scene) for name, scene in scenes.items()}
    data = {
        "title": title,
        "views": list(scenes),
        "facts": [list(fact) for fact in facts],
        "items": items,
    }
    text = (
        resources.files("forgedsl.drawing").joinpath("templates/graph.html.j2").read_text("utf-8")
    )
    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=False)
    page = environment.from_string(text).render(
        title=title,
        first=first,
        dark=Markup(DARK),
        markers=Markup("".join(markers(""))),
        views=[
            {
                "name": name,
                "width": f"{scene.width:.0f}",
                "height": f"{scene.height:.0f}",
                "figure": Markup(_interactive(scene)),
            }
            for name, scene in scenes.items()
        ],
        files=[{"name": _short(s.name), "lines": s.text.splitlines()} for s in sources],
        data=Markup(json.dumps(data, sort_keys=True).replace("<", "\\u003c")),
    )
    return page + "\n"


def _short(name: str) -> str:
    """Return the file name without its folders, as the `origin` of a shape has it."""
    return name.rpartition("/")[2]


def _items(scene: Scene) -> dict[str, dict[str, Any]]:
    """Return the details of each shape, frame and wire, by key."""
    found: dict[str, dict[str, Any]] = {}
    for key, part in _keyed(scene):
        if isinstance(part, Wire):
            (_, title), *more = part.details
            found[key] = {"title": title, "details": more, "origin": ""}
        else:
            title = part.title if isinstance(part, Cluster) else " ".join(part.lines[:2])
            found[key] = {
                "title": title or part.id,
                "details": list(part.details),
                "origin": part.origin,
            }
    return found


def _keyed(scene: Scene) -> list[tuple[str, Shape | Cluster | Wire]]:
    parts: list[tuple[str, Shape | Cluster | Wire]] = []
    parts += [(f"c{i}", cluster) for i, cluster in enumerate(scene.clusters) if cluster.details]
    parts += [(f"w{i}", wire) for i, wire in enumerate(scene.wires) if wire.details]
    parts += [(f"s{i}", shape) for i, shape in enumerate(scene.shapes)]
    return parts


def _interactive(scene: Scene) -> str:
    """Return the figure, with keys on all elements that have details."""
    lines = list(figure(scene, marker=""))
    count = {"c": len(scene.clusters), "w": len(scene.wires), "s": len(scene.shapes)}
    starts = {"c": 1, "w": 1 + count["c"], "s": 1 + count["c"] + count["w"]}
    for key, part in _keyed(scene):
        at = starts[key[0]] + int(key[1:])
        label = ""
        if not isinstance(part, Wire):
            spoken = part.title if isinstance(part, Cluster) else ", ".join(part.lines)
            label = f' tabindex="0" role="button" aria-label="{escape(spoken or part.id)}"'
        head, space, rest = lines[at].partition(" ")
        lines[at] = f'{head} data-key="{key}"{label}{space}{rest}'
    return "\n".join(lines)
