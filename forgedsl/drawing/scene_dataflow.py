"""The dataflow as a scene: a lane for each mesh, trunks with their queues, and weight syncs below.

Picture -> Lanes -> Scene
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forgedsl.drawing.lanes import BEND, FRAME, Lanes, Trunk, place
from forgedsl.drawing.picture import Arrow, Box, Group, Picture
from forgedsl.drawing.scene import Cluster, Label, Rect, Scene, Shape, Wire, box_size, text_width
from forgedsl.ir.graph import EdgeKind

LEFT, TOP = 44.0, 52.0
SYNC_FIRST, SYNC_NEXT = 34.0, 30.0


def dataflow_scene(picture: Picture) -> Scene:
    """The drawing of a picture; its arrows of kind DATA go from lower to higher ranks."""
    data = [arrow for arrow in picture.arrows if arrow.kind is EdgeKind.DATA]
    syncs = [arrow for arrow in picture.arrows if arrow.returns]
    trunks, arrows = _trunks(data)
    leaving = {box.id: sum(t.source == box.id for t in trunks) for box in picture.boxes}
    sizes = {box.id: box_size(lines_of(box), leaving[box.id]) for box in picture.boxes}
    rank = _ranks(picture.boxes, data)
    lane = {box.id: box.group for box in picture.boxes}
    groups = {group.name: group for group in picture.groups}
    titles = {name: text_width(_title(groups, name, picture.home)) for name in lane.values()}
    lanes = place(sizes, rank, lane, trunks, titles)
    colour = {group.name: number for number, group in enumerate(picture.groups)}
    wires = [*_wires(lanes, trunks, arrows, rank), *_sync_wires(lanes, syncs, rank)]
    labels = [*_labels(lanes, trunks, arrows, rank), *_sync_labels(lanes, syncs, rank)]
    depth = SYNC_FIRST + SYNC_NEXT * len(syncs) if syncs else 0.0
    shapes = tuple(
        Shape(
            id=box.id,
            rect=_moved(lanes.boxes[box.id]),
            lines=lines_of(box),
            colour=colour.get(box.group),
            details=box.details,
            origin=box.origin,
        )
        for box in picture.boxes
    )
    clusters = tuple(_clusters(picture, lanes, rank, colour))
    right = max([lanes.width + LEFT, *(c.rect.right for c in clusters),
                 *(label.rect.right for label in labels)])  # fmt: skip
    return Scene(
        title=picture.title,
        width=right + 24,
        height=TOP + lanes.height + depth + 24,
        shapes=shapes,
        clusters=clusters,
        wires=tuple(wires),
        labels=tuple(labels),
    )


def lines_of(box: Box) -> tuple[str, ...]:
    return tuple(line for line in (box.name, box.title, box.note) if line)


def _moved(rect: Rect) -> Rect:
    return Rect(x=rect.x + LEFT, y=rect.y + TOP, width=rect.width, height=rect.height)


def _trunks(data: Sequence[Arrow]) -> tuple[list[Trunk], list[list[Arrow]]]:
    """Arrows of one source with one label share a trunk."""
    grouped: dict[tuple[str, str], list[Arrow]] = {}
    for arrow in data:
        grouped.setdefault((arrow.source, arrow.label), []).append(arrow)
    trunks = [
        Trunk(
            source=source,
            label_width=text_width(label),
            targets=tuple(dict.fromkeys(arrow.target for arrow in arrows)),
        )
        for (source, label), arrows in grouped.items()
    ]
    return trunks, list(grouped.values())


def _ranks(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Longest distance from a source; boxes come in topological order."""
    rank = {box.id: 0 for box in boxes}
    for box in boxes:
        ends = [rank[arrow.source] + 1 for arrow in arrows if arrow.target == box.id]
        rank[box.id] = max(ends, default=0)
    return rank


def _clusters(
    picture: Picture, lanes: Lanes, rank: dict[str, int], colour: dict[str, int]
) -> Iterator[Cluster]:
    """A frame for each mesh that runs a node, and one for the controller's functions."""
    groups = {group.name: group for group in picture.groups}
    for name, (top, bottom) in lanes.bands.items():
        mine = [rank[box.id] for box in picture.boxes if box.group == name]
        left, right = lanes.lefts[min(mine)], lanes.rights[max(mine)]
        group = groups.get(name)
        width = right - left + 2 * FRAME
        yield Cluster(
            id=f"frame/{name or picture.home}",
            rect=Rect(x=left - FRAME + LEFT, y=top + TOP, width=width, height=bottom - top),
            title=_title(groups, name, picture.home),
            colour=colour.get(name),
            details=group.details if group else (),
            origin=group.origin if group else "",
        )


def _title(groups: dict[str, Group], name: str, home: str) -> str:
    return groups[name].title if name in groups else home


# ---- wires


def _wires(
    lanes: Lanes, trunks: Sequence[Trunk], arrows: Sequence[Sequence[Arrow]], rank: dict[str, int]
) -> Iterator[Wire]:
    for number, trunk in enumerate(trunks):
        for target in trunk.targets:
            points = [(lanes.boxes[trunk.source].right, lanes.ports[number])]
            for column in range(rank[trunk.source], rank[target]):
                points.append((lanes.bends[column], points[-1][1]))
                if column + 1 < rank[target]:
                    points.append((lanes.lefts[column + 1], lanes.tracks[number, column + 1]))
            points.append((lanes.boxes[target].x - 2, lanes.entries[number, target]))
            arrow = next(a for a in arrows[number] if a.target == target)
            yield Wire(
                path=_path(points), source=trunk.source, target=target, details=arrow.details
            )


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Level stretches, and an S-bend wherever the height changes."""
    (x, y), *rest = points
    path = f"M{x + LEFT:.1f} {y + TOP:.1f}"
    for end_x, end_y in rest:
        if end_y == y:
            path += f"H{end_x + LEFT:.1f}"
        else:
            middle = (x + end_x) / 2 + LEFT
            path += (
                f"C{middle:.1f} {y + TOP:.1f} {middle:.1f} {end_y + TOP:.1f} "
                f"{end_x + LEFT:.1f} {end_y + TOP:.1f}"
            )
        x, y = end_x, end_y
    return path


def _labels(
    lanes: Lanes, trunks: Sequence[Trunk], arrows: Sequence[Sequence[Arrow]], rank: dict[str, int]
) -> Iterator[Label]:
    for number, trunk in enumerate(trunks):
        x = lanes.rights[rank[trunk.source]] + FRAME + 6 + LEFT
        rect = Rect(x=x, y=lanes.ports[number] - 14 + TOP, width=trunk.label_width, height=12)
        yield Label(text=arrows[number][0].label, rect=rect, source=trunk.source)


# ---- weight syncs and replays: right, down, left below everything, and up


def _sync_way(
    lanes: Lanes, arrow: Arrow, number: int, rank: dict[str, int]
) -> tuple[float, float, float]:
    """(x on the way down, y below everything, x on the way up)."""
    down = lanes.bends[rank[arrow.source]] + 10 + 7 * number
    up = lanes.lefts[rank[arrow.target]] - FRAME - 10 - 6 * number
    return down, lanes.height + SYNC_FIRST + SYNC_NEXT * number, max(up, 12 - LEFT)


def _sync_wires(lanes: Lanes, syncs: Sequence[Arrow], rank: dict[str, int]) -> Iterator[Wire]:
    assert BEND > 40  # vertical parts of wires run in the zones of bends, where there is no text
    for number, arrow in enumerate(syncs):
        source, target = lanes.boxes[arrow.source], lanes.boxes[arrow.target]
        down, low, up = _sync_way(lanes, arrow, number, rank)
        start_y = source.y + source.height * 0.75
        end_y = target.y + target.height * 0.8
        path = (
            f"M{source.right + LEFT:.1f} {start_y + TOP:.1f}H{down + LEFT:.1f}"
            f"V{low + TOP:.1f}H{up + LEFT:.1f}V{end_y + TOP:.1f}H{target.x - 2 + LEFT:.1f}"
        )
        yield Wire(path=path, source=arrow.source, target=arrow.target, weights=True,
                   details=arrow.details)  # fmt: skip


def _sync_labels(lanes: Lanes, syncs: Sequence[Arrow], rank: dict[str, int]) -> Iterator[Label]:
    for number, arrow in enumerate(syncs):
        down, low, up = _sync_way(lanes, arrow, number, rank)
        text = arrow.returns
        x = (down + up) / 2 - text_width(text) / 2 + LEFT
        rect = Rect(x=max(x, 8.0), y=low - 16 + TOP, width=text_width(text), height=12)
        yield Label(text=text, rect=rect, weights=True, source=arrow.source)
