"""The graph as a Mermaid flowchart (GitHub renders it); meshes are subgraphs."""

from __future__ import annotations

import re

from forgedsl.drawing.picture import Arrow, Box, Picture


def render_mermaid(picture: Picture) -> str:
    """Mermaid text, ending in a newline."""
    key_by_id = {box.id: _key(box, number) for number, box in enumerate(picture.boxes)}
    lines = ["flowchart LR", f"  %% {picture.title}"]
    for group in picture.groups:
        lines.append(f'  subgraph mesh_{_word(group.name)}["{_escaped(group.title)}"]')
        lines += [f"    {_box(b, key_by_id)}" for b in picture.boxes if b.group == group.name]
        lines.append("  end")
    lines += [f"  {_box(box, key_by_id)}" for box in picture.boxes if not box.group]
    lines += [f"  {_arrow(arrow, key_by_id)}" for arrow in picture.arrows]
    return "\n".join(lines) + "\n"


def _key(box: Box, number: int) -> str:
    return f"n{number}_{_word(box.name)}"


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name)


def _box(box: Box, key_by_id: dict[str, str]) -> str:
    note = f"<br/><small>{_escaped(box.note)}</small>" if box.note else ""
    return f'{key_by_id[box.id]}["<b>{_escaped(box.name)}</b><br/>{_escaped(box.title)}{note}"]'


def _arrow(arrow: Arrow, key_by_id: dict[str, str]) -> str:
    source, target = key_by_id[arrow.source], key_by_id[arrow.target]
    label = _escaped(arrow.label)
    if arrow.returns:
        return f'{source} -. "{_escaped(arrow.returns)}" .-> {target}'
    return f'{source} -- "{label}" --> {target}'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "#quot;").replace("<", "&lt;")
