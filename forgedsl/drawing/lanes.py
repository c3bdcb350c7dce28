"""Layout of boxes and wires: columns by rank, a lane per mesh, wires on tracks of their own.

    boxes with lanes + trunks (source, label -> targets) -> Lanes (boxes, tracks, columns, lanes)

Lanes are horizontal bands that do not overlap, so frames around them never touch. A trunk is all
arrows of one source with one label. It leaves its box at its own port, runs horizontally past the
labels of its column, and bends only in the zone before the next column. In columns that it passes
it has a track of its own, so it crosses no box. No text is crossed by a box or another text. The
layout is deterministic; ties keep the given order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from forgedsl.drawing.scene import PORT, Rect
from forgedsl.records import dataclass

GAP, BEND, TRACK, FRAME = 24.0, 60.0, 18.0, 12.0
LANE_TOP, LANE_BOTTOM, LANE_GAP = 30.0, 14.0, 22.0
SWEEPS = 12
MANY_LANES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """All arrows that leave one source with one label: the width of the label, and the targets."""

    source: str
    label_width: float
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """`ports` is the height at which a trunk leaves its box, `entries` where it meets a target,
    `tracks` its heights in the columns it passes. `bands` are the (top, bottom) of lanes."""

    boxes: Mapping[str, Rect]
    ports: tuple[float, ...]
    entries: Mapping[tuple[int, str], float]
    tracks: Mapping[tuple[int, int], float]
    lefts: tuple[float, ...]
    rights: tuple[float, ...]
    bends: tuple[float, ...]
    """x at which the zone of bends after each column begins"""
    bands: Mapping[str, tuple[float, float]]
    width: float
    height: float


Slot = str | tuple[int, int]
"""a box, or the track of a trunk in a column"""


def place(
    sizes: Mapping[str, tuple[float, float]],
    rank: Mapping[str, int],
    lane: Mapping[str, str],
    trunks: Sequence[Trunk],
    titles: Mapping[str, float],
) -> Lanes:
    """Place boxes, given in topological order. `titles` has the minimum width of each frame: that
    of its title."""
    tracks = _tracks(rank, trunks)
    order = _lane_order(rank, lane, trunks)
    columns = _columns(rank, lane, trunks, tracks, order)
    height = {slot: sizes[slot][1] if isinstance(slot, str) else TRACK
              for column in columns for slot in column}  # fmt: skip
    lane_by_slot = _slot_lanes(lane, trunks, tracks)
    bands, tops = _bands(columns, height, lane_by_slot, order)
    middles = _heights(columns, height, lane_by_slot, tops, _links(trunks, rank, tracks))
    spans = {n: [rank[b] for b in sizes if lane[b] == n] for n in order}
    needs = [(min(span), max(span), titles[name]) for name, span in spans.items()]
    lefts, rights, bends, width = _widths(columns, sizes, trunks, needs)
    boxes = {
        box: Rect(
            x=lefts[rank[box]],
            y=middles[box] - sizes[box][1] / 2,
            width=sizes[box][0],
            height=sizes[box][1],
        )
        for box in sizes
    }
    return Lanes(
        boxes=boxes,
        ports=_ports(trunks, boxes, middles, rank),
        entries=_entries(trunks, boxes, middles, rank),
        tracks={slot: middles[slot] for slot in tracks},
        lefts=lefts,
        rights=rights,
        bends=bends,
        bands=bands,
        width=width,
        height=max((bottom for _, bottom in bands.values()), default=0.0),
    )


# ---- order


def _tracks(rank: Mapping[str, int], trunks: Sequence[Trunk]) -> list[tuple[int, int]]:
    """(trunk, column) for every column that a trunk passes."""
    return [
        (number, column)
        for number, trunk in enumerate(trunks)
        for column in range(rank[trunk.source] + 1, max(rank[t] for t in trunk.targets))
    ]


def _lane_order(
    rank: Mapping[str, int], lane: Mapping[str, str], trunks: Sequence[Trunk]
) -> tuple[str, ...]:
    """Order the lanes from top to bottom, with connected ones close together."""
    names = tuple(dict.fromkeys(lane.values()))
    if len(names) > MANY_LANES:
        means = {n: _mean([rank[b] for b in rank if lane[b] == n], 0.0) for n in names}
        return tuple(sorted(names, key=lambda name: means[name]))
    pairs = [(lane[t.source], lane[target]) for t in trunks for target in t.targets]

    def distance(order: tuple[str, ...]) -> int:
        return sum(abs(order.index(a) - order.index(b)) for a, b in pairs)

    return min(itertools.permutations(names), key=distance)


def _slot_lanes(
    lane: Mapping[str, str], trunks: Sequence[Trunk], tracks: Sequence[tuple[int, int]]
) -> dict[Slot, str]:
    found: dict[Slot, str] = {slot: lane[trunks[slot[0]].source] for slot in tracks}
    found.update(lane)
    return found


def _links(
    trunks: Sequence[Trunk], rank: Mapping[str, int], tracks: Sequence[tuple[int, int]]
) -> list[tuple[Slot, Slot]]:
    """Return the pairs of slots in neighbouring columns that a wire joins."""
    known = set(tracks)
    found: list[tuple[Slot, Slot]] = []
    for number, trunk in enumerate(trunks):
        before: Slot = trunk.source
        for column in range(rank[trunk.source] + 1, max(rank[t] for t in trunk.targets) + 1):
            found += [(before, target) for target in trunk.targets if rank[target] == column]
            if (number, column) in known:
                found.append((before, (number, column)))
                before = (number, column)
    return found


def _columns(
    rank: Mapping[str, int],
    lane: Mapping[str, str],
    trunks: Sequence[Trunk],
    tracks: Sequence[tuple[int, int]],
    order: tuple[str, ...],
) -> list[list[Slot]]:
    """Order the slots of each column by lane, then by the mean position of their neighbours."""
    columns: list[list[Slot]] = [[] for _ in range(1 + max(rank.values(), default=0))]
    for box, number in rank.items():
        columns[number].append(box)
    for slot in tracks:
        columns[slot[1]].append(slot)
    lanes = _slot_lanes(lane, trunks, tracks)
    level = {slot: order.index(name) for slot, name in lanes.items()}
    for column in columns:
        column.sort(key=lambda slot: level[slot])
    links = _links(trunks, rank, tracks)
    before: dict[Slot, list[Slot]] = {slot: [] for slot in lanes}
    after: dict[Slot, list[Slot]] = {slot: [] for slot in lanes}
    for one, other in links:
        after[one].append(other)
        before[other].append(one)
    best, fewest = [list(c) for c in columns], crossings(columns, links)
    for sweep in range(SWEEPS):
        near = before if sweep % 2 == 0 else after
        for column in columns[1:] if sweep % 2 == 0 else columns[-2::-1]:
            index = {slot: i for other in columns for i, slot in enumerate(other)}
            column.sort(
                key=lambda slot: (level[slot], _mean([index[n] for n in near[slot]], index[slot]))
            )
        found = crossings(columns, links)
        if found < fewest:
            best, fewest = [list(c) for c in columns], found
    return best


def crossings(columns: Sequence[Sequence[Slot]], links: Sequence[tuple[Slot, Slot]]) -> int:
    """Count the pairs of links between two columns that cross."""
    level = {slot: i for i, column in enumerate(columns) for slot in column}
    index = {slot: i for column in columns for i, slot in enumerate(column)}
    by_column: dict[int, list[tuple[int, int]]] = {}
    for one, other in links:
        by_column.setdefault(level[one], []).append((index[one], index[other]))
    return sum(
        (a - c) * (b - d) < 0
        for pairs in by_column.values()
        for (a, b), (c, d) in itertools.combinations(pairs, 2)
    )


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


# ---- coordinates


def _bands(
    columns: Sequence[Sequence[Slot]],
    height: Mapping[Slot, float],
    lanes: Mapping[Slot, str],
    order: tuple[str, ...],
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
    """Return (frame, range for slots) of each lane, from top to bottom."""
    frames, rooms = {}, {}
    top = 0.0
    for name in order:
        stacks = [[height[s] for s in column if lanes[s] == name] for column in columns]
        tallest = max(sum(stack) + GAP * (len(stack) - 1) for stack in stacks if stack)
        rooms[name] = (top + LANE_TOP, top + LANE_TOP + tallest)
        bottom = rooms[name][1] + LANE_BOTTOM
        frames[name] = (top, bottom)
        top = bottom + LANE_GAP
    return frames, rooms


def _heights(
    columns: Sequence[Sequence[Slot]],
    height: Mapping[Slot, float],
    lanes: Mapping[Slot, str],
    rooms: Mapping[str, tuple[float, float]],
    links: Sequence[tuple[Slot, Slot]],
) -> dict[Slot, float]:
    """Return the y of each slot: near its neighbours, apart from others, inside of its lane."""
    near: dict[Slot, list[Slot]] = {slot: [] for slot in height}
    for one, other in links:
        near[one].append(other)
        near[other].append(one)
    stacks = [
        [slot for slot in column if lanes[slot] == name] for column in columns for name in rooms
    ]
    middles: dict[Slot, float] = {}
    for stack in stacks:
        top = rooms[lanes[stack[0]]][0] if stack else 0.0
        for slot in stack:
            middles[slot] = top + height[slot] / 2
            top += height[slot] + GAP
    for _ in range(SWEEPS):
        for stack in stacks:
            if stack:
                wanted = [_mean([middles[n] for n in near[slot]], middles[slot]) for slot in stack]
                _spread(stack, wanted, height, rooms[lanes[stack[0]]], middles)
    return middles


def _spread(
    stack: Sequence[Slot],
    wanted: Sequence[float],
    height: Mapping[Slot, float],
    room: tuple[float, float],
    middles: dict[Slot, float],
) -> None:
    """Put slots near the wanted heights, in order, GAP apart and inside `room`."""
    places = []
    low = room[0]
    for slot, y in zip(stack, wanted, strict=True):
        places.append(max(y, low + height[slot] / 2))
        low = places[-1] + height[slot] / 2 + GAP
    high = room[1]
    for i in reversed(range(len(stack))):
        places[i] = min(places[i], high - height[stack[i]] / 2)
        high = places[i] - height[stack[i]] / 2 - GAP
    middles.update(zip(stack, places, strict=True))


def _widths(
    columns: Sequence[Sequence[Slot]],
    sizes: Mapping[str, tuple[float, float]],
    trunks: Sequence[Trunk],
    needs: Sequence[tuple[int, int, float]],
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], float]:
    """Return left and right of each column, the x where its bends begin, and the total width.

    `needs` are (first column, last column, width) of frames.
    """
    lefts, rights, bends = [], [], []
    left = 0.0
    for number, column in enumerate(columns):
        boxes = [slot for slot in column if isinstance(slot, str)]
        lefts.append(left)
        right = left + max((sizes[box][0] for box in boxes), default=0.0)
        framed = [lefts[first] + wide for first, last, wide in needs if last == number]
        right = max([right, *framed])
        label = max((t.label_width for t in trunks if t.source in boxes), default=0.0)
        rights.append(right)
        bends.append(right + FRAME + label + 16)
        left = bends[-1] + BEND
    return tuple(lefts), tuple(rights), tuple(bends), bends[-1] if bends else 0.0


def _ports(
    trunks: Sequence[Trunk],
    boxes: Mapping[str, Rect],
    middles: Mapping[Slot, float],
    rank: Mapping[str, int],
) -> tuple[float, ...]:
    """Return the heights at which trunks leave, ordered by their next slots."""
    found = [0.0] * len(trunks)
    by_source: dict[str, list[int]] = {}
    for number, trunk in enumerate(trunks):
        by_source.setdefault(trunk.source, []).append(number)
    for source, numbers in by_source.items():

        def ahead(number: int, source: str = source) -> float:
            column = rank[source] + 1
            first = [middles[t] for t in trunks[number].targets if rank[t] == column]
            return _mean([*first, *([middles[number, column]] if (number, column) in middles
                                    else [])], 0.0)  # fmt: skip

        middle = boxes[source].y + boxes[source].height / 2
        for i, number in enumerate(sorted(numbers, key=ahead)):
            found[number] = middle + PORT * (i - (len(numbers) - 1) / 2)
    return tuple(found)


def _entries(
    trunks: Sequence[Trunk],
    boxes: Mapping[str, Rect],
    middles: Mapping[Slot, float],
    rank: Mapping[str, int],
) -> dict[tuple[int, str], float]:
    """Return the heights at which trunks arrive, ordered by their origins."""
    found: dict[tuple[int, str], float] = {}
    arriving: dict[str, list[int]] = {}
    for number, trunk in enumerate(trunks):
        for target in trunk.targets:
            arriving.setdefault(target, []).append(number)
    for target, numbers in arriving.items():

        def behind(number: int, target: str = target) -> float:
            return middles.get((number, rank[target] - 1), middles[trunks[number].source])

        step = min(12.0, boxes[target].height / (len(numbers) + 1))
        middle = boxes[target].y + boxes[target].height / 2
        for i, number in enumerate(sorted(numbers, key=behind)):
            found[number, target] = middle + step * (i - (len(numbers) - 1) / 2)
    return found
