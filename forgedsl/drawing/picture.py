"""Content of every drawing of the graph: boxes, arrows and groups, without a format.

    Program + Graph + Plan -> Picture -> text | mermaid | dot | svg

A box is a node; a group is the process mesh it runs on. The weight sync is an arrow from the step
to the samplers, not a box. Arrows carry the edge name and how many items may wait on it.
"""

from __future__ import annotations

from collections.abc import Callable

from forgedsl.ir.graph import EdgeKind, Graph, Node
from forgedsl.ir.program import Program, engine_of
from forgedsl.operations.registry import operation
from forgedsl.plan.plan import Plan
from forgedsl.plan.sizes import PlannedSizes
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.types.flow import Role

Details = tuple[tuple[str, str], ...]
"""text shown on hovering: (field, value)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """`title` is the call, `note` its size, `group` the mesh it runs on ("" for the controller)."""

    id: str
    name: str
    title: str
    note: str
    group: str
    details: Details = ()
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    source: str
    target: str
    label: str
    kind: EdgeKind
    details: Details = ()

    @property
    def returns(self) -> str:
        """Return the label of an edge that closes a cycle; "" for an edge of the step's data."""
        if self.kind is EdgeKind.WEIGHTS:
            return f"weights: {self.label}"
        return f"replay: {self.label}" if self.kind is EdgeKind.REPLAY else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A mesh: `title` is its name and sizes."""

    name: str
    title: str
    device: str
    details: Details = ()
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    groups: tuple[Group, ...]
    home: str = "controller"
    """title of the frame around boxes that run on no mesh"""


FormatSpan = Callable[[Span], str]
"""formats a span: "grpo_math.forge:63:3"; "" if it is in no file"""


def picture(
    program: Program, graph: Graph, plan: Plan, place: FormatSpan = lambda _: ""
) -> Picture:
    """Make the picture of a planned graph."""
    from forgedsl.drawing.details import arrow_details, box_details, group_details

    boxes = tuple(
        Box(
            id=node.id,
            name=node.name,
            title=call_text(node),
            note=note_text(node, plan, graph),
            group=engine_of(program, node.target) if node.target in graph.services else "",
            details=box_details(node, graph, plan),
            origin=place(node.span),
        )
        for node in graph.nodes
        if Role.TRANSFERS not in node.roles
    )
    return Picture(
        title=title_text(program),
        boxes=boxes,
        arrows=tuple(
            Arrow(
                source=arrow.source,
                target=arrow.target,
                label=arrow.label,
                kind=arrow.kind,
                details=arrow_details(arrow.source, arrow.target, arrow.kind, graph, plan),
            )
            for arrow in _arrows(graph, plan)
        ),
        groups=tuple(
            Group(
                name=m.service,
                title=f"{m.name}: {m.text} ({m.device})",
                device=m.device,
                details=group_details(m, plan),
                origin=place(program.services[m.service].name_span),
            )
            for m in plan.meshes
        ),
    )


def title_text(program: Program) -> str:
    profile = f" (profile {program.profile})" if program.profile else ""
    return f"{program.name}{profile}"


def call_text(node: Node) -> str:
    """Return the node as a call, e.g. "generator.sample(n = 8)"."""
    return operation(node.op).call_text(node)


def note_text(node: Node, plan: Plan, graph: Graph) -> str:
    """Return the size of a node's work in an optimizer step."""
    return operation(node.op).note_text(node, PlannedSizes(plan.request, graph))


def _arrows(graph: Graph, plan: Plan) -> tuple[Arrow, ...]:
    name_by_id = {node.id: node.name for node in graph.nodes}
    arrows = []
    for edge in graph.edges:
        if edge.kind is EdgeKind.DATA:
            capacity = plan.capacities[name_by_id[edge.source]]
            label = f"{edge.label} [{capacity}]"
            arrows.append(
                Arrow(source=edge.source, target=edge.target, label=label, kind=edge.kind)
            )
        elif edge.kind is EdgeKind.WEIGHTS:
            sync = next(node for node in graph.syncs if node.id == edge.source)
            label = sync_text(sync, plan)
            arrows.append(
                Arrow(source=graph.step.id, target=edge.target, label=label, kind=edge.kind)
            )
        elif edge.kind is EdgeKind.REPLAY:
            label = f"{edge.label}, in later steps"
            arrows.append(
                Arrow(source=edge.source, target=edge.target, label=label, kind=edge.kind)
            )
    return tuple(arrows)


def sync_text(sync: Node, plan: Plan) -> str:
    """Describe a weight sync, e.g. "every step, overlapped, age <= 1"."""
    every = int(sync.settings.get("every", 1))
    parts = ["every step" if every == 1 else f"every {every} steps"]
    if sync.settings.get("overlap", True) and plan.schedule.mode == "async":
        parts.append("overlapped")
    parts.append(f"age <= {plan.schedule.staleness.age_bound}")
    return ", ".join(parts)
