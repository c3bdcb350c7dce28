"""The graph in Graphviz DOT; meshes are clusters, the weight sync does not constrain ranks."""

from __future__ import annotations

import json

from forgedsl.drawing.picture import Arrow, Box, Picture


def render_dot(picture: Picture) -> str:
    """DOT text, ending in a newline."""
    lines = [
        f"digraph {_quoted(picture.title)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    for group in picture.groups:
        lines.append(f"  subgraph {_quoted(f'cluster_{group.name}')} {{")
        lines.append(f"    label={_quoted(group.title)};")
        lines += [f"    {_box(box)}" for box in picture.boxes if box.group == group.name]
        lines.append("  }")
    lines += [f"  {_box(box)}" for box in picture.boxes if not box.group]
    lines += [f"  {_arrow(arrow)}" for arrow in picture.arrows]
    return "\n".join([*lines, "}"]) + "\n"


def _box(box: Box) -> str:
    label = "\n".join(part for part in (box.name, box.title, box.note) if part)
    return f"{_quoted(box.id)} [label={_quoted(label)}];"


def _arrow(arrow: Arrow) -> str:
    ends = f"{_quoted(arrow.source)} -> {_quoted(arrow.target)}"
    if arrow.returns:
        return f"{ends} [label={_quoted(arrow.returns)}, style=dashed, constraint=false];"
    return f"{ends} [label={_quoted(arrow.label)}];"


def _quoted(text: str) -> str:
    return json.dumps(text)
