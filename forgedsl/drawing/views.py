"""Views besides the dataflow: placement of processes, schedule, passes of the compiler.

Plan  -> mesh_scene       hosts, their GPUs, what each holds
Plan  -> schedule_scene   the first steps on a clock, with the age of every batch
facts -> passes_picture   tokens, ast, hir, graph, plan, job, with what each found
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from forgedsl.drawing.details import group_details
from forgedsl.drawing.picture import Arrow, Box, FormatSpan, Picture, sync_text, title_text
from forgedsl.drawing.scene import (
    LINE,
    Cluster,
    Details,
    Label,
    Rect,
    Scene,
    Shape,
    Wire,
    box_size,
    text_width,
)
from forgedsl.ir.graph import EdgeKind, Graph
from forgedsl.ir.program import Program
from forgedsl.plan.cost import time_text
from forgedsl.plan.host import host_text
from forgedsl.plan.plan import Plan
from forgedsl.plan.timeline import SYNC, Bar, timeline
from forgedsl.records import dataclass
from forgedsl.services.registry import kind_of
from forgedsl.sizes.memory import GIB

CELL_HEIGHT, CELL_GAP, PER_ROW = 52.0, 10.0, 8
HOSTS = 8
LEFT, TOP = 28.0, 74.0
BAR, BAR_GAP, CLOCK = 26.0, 14.0, 900.0
NARROW = 26.0
"""minimum width of a bar with text"""


# ---- meshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Contents of one GPU, or of one process without a GPU."""

    host: int
    gpu: int | None
    names: tuple[str, ...]
    service: str


def mesh_scene(program: Program, graph: Graph, plan: Plan, place: FormatSpan) -> Scene:
    """Draw hosts as frames, GPUs and processes as cells."""
    colour = {mesh.service: i for i, mesh in enumerate(plan.meshes)}
    origins = {m.service: place(program.services[m.service].name_span) for m in plan.meshes}
    details = {m.service: group_details(m, plan) for m in plan.meshes}
    by_host: dict[int, list[Process]] = {}
    for process in processes(plan):
        by_host.setdefault(process.host, []).append(process)
    shapes: list[Shape] = []
    clusters: list[Cluster] = []
    top = TOP
    used = sorted(by_host)
    names = [name for cells in by_host.values() for cell in cells for name in cell.names]
    wide = max([84.0, *(box_size((name,))[0] for name in names)]) + CELL_GAP
    columns = min(PER_ROW, max(len(cells) for cells in by_host.values()))
    tall = CELL_HEIGHT + LINE * (max(len(p.names) for c in by_host.values() for p in c) - 1)
    for host in used[:HOSTS]:
        cells = sorted(by_host[host], key=lambda p: (p.gpu is None, p.gpu or 0))
        for i, process in enumerate(cells):
            row, column = divmod(i, PER_ROW)
            rect = Rect(
                x=LEFT + 14 + column * wide,
                y=top + 30 + row * (tall + CELL_GAP),
                width=wide - CELL_GAP,
                height=tall,
            )
            shapes.append(_cell(process, rect, colour, details, origins))
        rows = -(-len(cells) // PER_ROW)
        height = 30 + rows * (tall + CELL_GAP) + 6
        rect = Rect(x=LEFT, y=top, width=28 + columns * wide - CELL_GAP, height=height)
        clusters.append(Cluster(id=f"mesh/host{host}", rect=rect, title=f"host {host}"))
        top += height + 16
    labels = list(_mesh_labels(graph, plan, top, len(used)))
    right = LEFT * 2 + 28 + columns * wide
    return Scene(
        title=f"{title_text(program)}: {host_text(plan.host)}",
        width=max([right, *(label.rect.right + LEFT for label in labels)]),
        height=max(top, *(label.rect.bottom for label in labels)) + 24,
        shapes=tuple(shapes),
        clusters=tuple(clusters),
        labels=tuple(labels),
    )


def _cell(
    process: Process,
    rect: Rect,
    colour: dict[str, int],
    details: dict[str, Details],
    origins: dict[str, str],
) -> Shape:
    where = f"GPU {process.gpu}" if process.gpu is not None else "process"
    return Shape(
        id=f"mesh/host{process.host}/{where.replace(' ', '')}/{process.names[0].replace(' ', '')}",
        rect=rect,
        lines=(*process.names, where),
        colour=colour[process.service],
        details=(("host", str(process.host)), *details[process.service]),
        origin=origins[process.service],
    )


def processes(plan: Plan) -> Iterator[Process]:
    """Return the GPUs with their services, then processes without GPUs."""
    gpus: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for mesh in plan.meshes:
        ranks: dict[int, int] = {}
        for spot in mesh.places:
            for slot in range(mesh.procs):
                rank = ranks.get(spot.replica, 0)
                ranks[spot.replica] = rank + 1
                number = spot.replica if kind_of(mesh.kind).replicated else rank
                name = f"{mesh.service} {number}"
                mine = spot.gpus[slot * mesh.gpus : (slot + 1) * mesh.gpus]
                for gpu in mine:
                    gpus.setdefault((spot.host, gpu), []).append((name, mesh.service))
                if not mine:
                    yield Process(host=spot.host, gpu=None, names=(name,), service=mesh.service)
    for (host, gpu), names in gpus.items():
        yield Process(
            host=host, gpu=gpu, names=tuple(name for name, _ in names), service=names[0][1]
        )


def _mesh_labels(graph: Graph, plan: Plan, top: float, hosts: int) -> Iterator[Label]:
    lines = [f"... and {hosts - HOSTS} more hosts"] if hosts > HOSTS else []
    for sync in graph.syncs:
        lines.append(f"{sync.target} => {sync.settings['target']}: {sync_text(sync, plan)}")
    for store in plan.memory.stores:
        share = f"{store.bytes / GIB:,.1f} of {store.capacity / GIB:,.1f} GiB"
        count = f" x {store.count}" if store.count > 1 else ""
        lines.append(f"{store.name}{count}: {share} ({100 * store.share:.0f} %)")
    for i, line in enumerate(lines):
        rect = Rect(x=LEFT, y=top + 6 + 18 * i, width=text_width(line), height=12)
        yield Label(text=line, rect=rect)


# ---- schedule


def schedule_scene(program: Program, graph: Graph, plan: Plan, place: FormatSpan) -> Scene:
    """Bars of the first steps; a lane for each service, one for weights."""
    bars = timeline(graph, plan)
    names = [mesh.service for mesh in plan.meshes]
    colour = {name: i for i, name in enumerate(names)} | {SYNC: len(names)}
    origins = {n: place(program.services[n].name_span) for n in names} | {
        SYNC: place(graph.syncs[0].span) if graph.syncs else ""
    }
    lanes = [name for name in (*names, SYNC) if any(bar.lane == name for bar in bars)]
    left = LEFT + 20 + max((text_width(name) for name in lanes), default=0.0)
    end = max((bar.end for bar in bars), default=1.0) or 1.0
    shapes: list[Shape] = []
    edges: dict[str, float] = {}
    for bar in bars:  # a bar that is too short gets a minimum width and moves later ones
        begin = max(left + CLOCK / end * bar.start, edges.get(bar.lane, 0.0))
        row = lanes.index(bar.lane)
        shapes.append(_bar(bar, row, begin, CLOCK / end, plan, colour, origins))
        edges[bar.lane] = shapes[-1].rect.right
    bottom = TOP + len(lanes) * (BAR + BAR_GAP)
    labels = [
        Label(text=name, rect=Rect(x=LEFT, y=TOP + i * (BAR + BAR_GAP) + 7,
                                   width=text_width(name), height=12))
        for i, name in enumerate(lanes)
    ]  # fmt: skip
    labels += _clock_labels(left, bottom, end)
    labels += _schedule_labels(plan, bars, bottom + 34)
    wires = tuple(
        Wire(
            path=f"M{left + CLOCK * i / 4:.1f} {TOP - 8:.1f}V{bottom:.1f}",
            source="",
            target="",
            plain=True,
        )
        for i in range(5)
    )
    return Scene(
        title=f"{title_text(program)}: the first steps, estimated",
        width=left + CLOCK + 60,
        height=labels[-1].rect.bottom + 24,
        shapes=tuple(shapes),
        wires=wires if bars else (),
        labels=tuple(labels),
    )


def _bar(
    bar: Bar,
    row: int,
    begin: float,
    scale: float,
    plan: Plan,
    colour: dict[str, int],
    origins: dict[str, str],
) -> Shape:
    width = max(3.0, scale * (bar.end - bar.start) - 1.5)
    y = TOP + row * (BAR + BAR_GAP)
    return Shape(
        id=f"schedule/{bar.node}/{bar.step}",
        rect=Rect(x=begin, y=y, width=width, height=BAR),
        lines=(str(bar.step) if width >= NARROW else "",),
        colour=colour[bar.lane],
        details=_bar_details(bar, plan),
        origin=origins[bar.lane],
    )


def _bar_details(bar: Bar, plan: Plan) -> tuple[tuple[str, str], ...]:
    found = [("node", bar.node), ("step", str(bar.step)), ("takes", time_text(bar.end - bar.start))]
    if bar.age is not None:
        bound = plan.schedule.staleness.age_bound
        found.append(("age of the batch", f"{bar.age}, at most {bound} in the worst case"))
    return tuple(found)


def _clock_labels(left: float, bottom: float, end: float) -> list[Label]:
    found = []
    for i in range(5):
        text = time_text(end * i / 4) if i else "0 s"
        x = left + CLOCK * i / 4 - text_width(text) / 2
        found.append(
            Label(text=text, rect=Rect(x=x, y=bottom + 4, width=text_width(text), height=12))
        )
    return found


def _schedule_labels(plan: Plan, bars: Sequence[Bar], top: float) -> list[Label]:
    lines = plan.schedule.text.splitlines()
    ages = [bar.age for bar in bars if bar.age is not None]
    if ages:
        lines.append(f"age of the batches drawn here: {', '.join(map(str, ages))}")
    lines.append(
        f"about {time_text(plan.cost.step_seconds)} a step if every sequence has its maximum length"
    )
    return [
        Label(text=line, rect=Rect(x=LEFT, y=top + 18 * i, width=text_width(line), height=12))
        for i, line in enumerate(lines)
    ]


# ---- passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass of the compiler: its summary and its product."""

    name: str
    what: str
    found: str
    makes: str


def passes_of(program: Program, graph: Graph, plan: Plan, *, lines: int) -> tuple[Pass, ...]:
    """Return the passes that a program went through."""
    decls = [
        *program.models.values(), *program.datasets.values(), *program.services.values(),
        *program.rubrics.values(), *program.for_operations, *program.evals.values(),
        *program.singletons.values(),
        *([program.schedule] if program.schedule is not None else []),
    ]  # fmt: skip
    layers = [value.origin.layer for decl in decls for value in decl.settings.values()]
    set_ = sum(layer in ("set", "set-file") for layer in layers)
    profile = sum(layer == "profile" for layer in layers)
    written = len(layers) - layers.count("default") - set_ - profile
    by = f"{written} written, {profile} by the profile, {set_} by --set"
    removed = sum(len(part.nodes) + len(part.services) for part in graph.removed)
    staleness = plan.schedule.staleness
    losses = [f for f in program.functions.values() if f.kind == "loss"]
    fields = next((len(f.fields) for f in losses if f.name == graph.loss), 0)
    return (
        Pass(name="tokens", what="tokens of the text", found=f"{lines} lines", makes="tokens"),
        Pass(name="ast", what="a syntax tree with source positions",
             found=f"{len(program.spans)} names", makes="AST"),
        Pass(name="hir", what="names, values", found=f"{len(layers)} settings: {by}",
             makes="Program"),
        Pass(name="graph", what="nodes, edges, pruning",
             found=f"{len(graph.nodes)} nodes, {removed} parts removed", makes="Graph"),
        Pass(name="plan", what="placement, memory, age",
             found=f"{len(plan.meshes)} meshes, {staleness.credits} credits, age <= "
             f"{staleness.age_bound}", makes="Plan"),
        Pass(name="job", what="gradients, generated code",
             found=f"loss {graph.loss}: {fields} fields, one hermetic job", makes="job.json"),
    )  # fmt: skip


def passes_picture(program: Program, passes: Sequence[Pass]) -> Picture:
    """Draw the passes as a chain."""
    boxes = [Box(id="passes/source", name="source", title=program.file.rpartition("/")[2], note="",
                 group="")]  # fmt: skip
    boxes += [
        Box(id=f"passes/{p.name}", name=p.name, title=p.what, note=p.found.split(":")[0], group="",
            details=(("output", p.makes), ("found", p.found)))
        for p in passes
    ]  # fmt: skip
    made = ["text", *(p.makes for p in passes)]
    return Picture(
        title=f"{title_text(program)}: passes",
        boxes=tuple(boxes),
        arrows=tuple(
            Arrow(source=a.id, target=b.id, label=label, kind=EdgeKind.DATA)
            for (a, b), label in zip(pairwise(boxes), made, strict=False)
        ),
        groups=(),
        home="forgec",
    )
