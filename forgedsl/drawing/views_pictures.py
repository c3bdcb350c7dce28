"""Meshes and schedule as boxes and arrows, for DOT and Mermaid.

Plan         -> mesh_picture       a frame for each host, a box for each GPU or process
Graph + Plan -> schedule_picture   a frame for each lane, a box for each piece of work, and what
                                   waits for what
"""

from __future__ import annotations

from itertools import pairwise

from forgedsl.drawing.picture import Arrow, Box, Group, Picture, sync_text, title_text
from forgedsl.drawing.views import processes
from forgedsl.ir.graph import EdgeKind, Graph
from forgedsl.ir.program import Program
from forgedsl.plan.cost import time_text
from forgedsl.plan.host import host_text
from forgedsl.plan.plan import Plan
from forgedsl.plan.timeline import SYNC, Bar, timeline


def mesh_picture(program: Program, graph: Graph, plan: Plan) -> Picture:
    """Draw on which host and GPU every process runs, and where weights travel."""
    boxes: list[Box] = []
    first: dict[str, str] = {}
    for process in sorted(processes(plan), key=lambda p: (p.host, p.gpu is None, p.gpu or 0)):
        where = f"GPU {process.gpu}" if process.gpu is not None else "process"
        box = Box(
            id=f"mesh/host{process.host}/{where}/{process.names[0]}".replace(" ", ""),
            name=", ".join(process.names),
            title=where,
            note="",
            group=f"host{process.host}",
        )
        boxes.append(box)
        for name in process.names:
            first.setdefault(name, box.id)
    hosts = sorted({box.group for box in boxes}, key=lambda name: int(name.removeprefix("host")))
    arrows = [
        Arrow(
            source=first[f"{sync.target} 0"],
            target=first[f"{sync.settings['target']} {replica}"],
            label=sync_text(sync, plan),
            kind=EdgeKind.WEIGHTS,
        )
        for sync in graph.syncs
        for replica in range(plan.mesh(str(sync.settings["target"])).replicas)
    ]
    return Picture(
        title=f"{title_text(program)}: {host_text(plan.host)}",
        boxes=tuple(boxes),
        arrows=tuple(arrows),
        groups=tuple(Group(name=h, title=h.replace("host", "host "), device="") for h in hosts),
    )


def schedule_picture(program: Program, graph: Graph, plan: Plan) -> Picture:
    """Draw the first steps. Arrows show order within a lane and within a step, and the weights that
    a step waits for."""
    bars = timeline(graph, plan)
    lanes = [mesh.service for mesh in plan.meshes] + [SYNC]
    return Picture(
        title=f"{title_text(program)}: the first steps, estimated",
        boxes=tuple(_box(bar) for bar in bars),
        arrows=(*_within(bars, lanes), *_released(bars, plan)),
        groups=tuple(
            Group(name=lane, title=lane, device="")
            for lane in lanes
            if any(bar.lane == lane for bar in bars)
        ),
    )


def gantt(program: Program, graph: Graph, plan: Plan) -> str:
    """The first steps as a Mermaid Gantt chart, times in milliseconds; ends in a newline."""
    bars = timeline(graph, plan)
    lines = ["gantt", f"  title {title_text(program)}: the first steps, estimated"]
    lines += ["  dateFormat x", "  axisFormat %M:%S"]
    for lane in dict.fromkeys(bar.lane for bar in bars):
        lines.append(f"  section {lane}")
        lines += [
            f"  {bar.node} {bar.step} :{bar.start * 1e3:.0f}, {bar.end * 1e3:.0f}"
            for bar in bars
            if bar.lane == lane
        ]
    return "\n".join(lines) + "\n"


def _id(bar: Bar) -> str:
    return f"schedule/{bar.node}/{bar.step}"


def _box(bar: Bar) -> Box:
    age = "" if bar.age is None else f"age {bar.age}"
    title = f"{time_text(bar.start)} to {time_text(bar.end)}" if bar.start else time_text(bar.end)
    return Box(id=_id(bar), name=f"{bar.node} {bar.step}", title=title, note=age, group=bar.lane)


def _arrow(source: Bar, target: Bar, label: str, kind: EdgeKind) -> Arrow:
    return Arrow(source=_id(source), target=_id(target), label=label, kind=kind)


def _within(bars: tuple[Bar, ...], lanes: list[str]) -> list[Arrow]:
    """Return the arrows between consecutive work in a step and in a lane."""
    found = []
    for step in dict.fromkeys(bar.step for bar in bars):
        mine = [bar for bar in bars if bar.step == step]
        found += [_arrow(a, b, f"batch {step}", EdgeKind.DATA) for a, b in pairwise(mine)]
    for lane in lanes:
        mine = [bar for bar in bars if bar.lane == lane]
        found += [_arrow(a, b, "then", EdgeKind.CONTROL) for a, b in pairwise(mine)]
    return found


def _released(bars: tuple[Bar, ...], plan: Plan) -> list[Arrow]:
    """Return an arrow from each weight sync to the step, `lag + 1` later, that may then begin."""
    lag = plan.schedule.staleness.lag
    begins = {bar.step: bar for bar in reversed(bars)}
    return [
        _arrow(bar, begins[bar.step + 1 + lag], f"after step {bar.step}", EdgeKind.WEIGHTS)
        for bar in bars
        if bar.lane == SYNC and bar.step + 1 + lag in begins
    ]
