"""Inlay hints and code lenses: results of the compiler shown in the text.

Hints show values that the plan chose (for `auto`, or by default), and axes and dtypes of locals. A
lens above the flow shows rates, step time, memory and policy age of the file without a profile.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ide.hover import value_types
from forgedsl.ide.uses import uses_of
from forgedsl.ide.workspace import Document
from forgedsl.lower.summary import summary_lines
from forgedsl.plan.cost import time_text
from forgedsl.plan.text import render_plan
from forgedsl.records import dataclass
from forgedsl.settings import Auto
from forgedsl.sizes.memory import GIB
from forgedsl.source import Span
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A text shown after an offset. `tip` is its tooltip."""

    offset: int
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lens:
    """A line shown above `span`."""

    span: Span
    text: str


def hints(document: Document) -> list[Hint]:
    """Return all hints of a text; none if it has a mistake."""
    if not document.is_whole:
        return []
    found = [*_axes(document), *_chosen(document)]
    return sorted(found, key=lambda hint: hint.offset)


def _axes(document: Document) -> Iterator[Hint]:
    """Return the type of each local at its definition."""
    types = {span: str(tree.tree.values[value].type) for span, tree, value in value_types(document)}
    uses = uses_of(document)
    for definition in uses.definitions():
        if definition.kind != "local" or isinstance(definition.node, ast.TypedAssign):
            continue
        found = next((types[span] for span in uses.of(definition) if span in types), "")
        if found:
            tip = "axes and dtype, as the compiler derives them"
            yield Hint(offset=definition.span.end, text=f": {found}", tip=tip)


def _chosen(document: Document) -> Iterator[Hint]:
    """Return the values that the plan chose, at the `auto` or after the header of the
    declaration."""
    planned = document.planned
    if planned is None:
        return
    program, _, plan = planned
    tip = "chosen by the plan of the file as written"
    headers: dict[int, list[str]] = {}
    for address, value in plan.chosen.items():
        owner, _, key = address.partition(".")
        decl = program.services.get(owner) or program.singletons.get(owner)
        setting = None if decl is None else decl.settings.get(key or "value")
        if decl is None or setting is None:
            continue
        span = setting.origin.span
        if isinstance(setting.value, Auto) and span is not None and span.file == document.name:
            yield Hint(offset=span.end, text=f" = {value}", tip=tip)
        elif decl.name_span.file == document.name and decl.name_span.end:
            headers.setdefault(_header_end(document, decl.name_span), []).append(f"{key} = {value}")
    for offset, texts in headers.items():
        yield Hint(offset=offset, text=f" {', '.join(texts)}", tip=tip)


def _header_end(document: Document, name: Span) -> int:
    """Return the offset after the constructor of a service."""
    for decl in document.tree.decls:
        if isinstance(decl, ast.BlockDecl) and decl.name_span == name and decl.ctor is not None:
            return decl.ctor.span.end
    return name.end


def lenses(document: Document) -> list[Lens]:
    """Return the plan of the file as written, in two lenses above its flow: what it costs, and what
    it does. Editors show both in one line, and cut a long one."""
    planned = document.planned
    place = next(
        (
            d.kind_span
            for d in document.tree.decls
            if isinstance(d, ast.BlockDecl) and d.kind == "flow"
        ),
        None,
    )
    if planned is None or place is None:
        return []
    program, graph, plan = planned
    title, rates, meshes = summary_lines(program, graph, plan)
    memory = [
        f"{rank.service} {rank.peak / GIB:.3g} GiB" for rank in plan.memory.ranks if rank.peak
    ]
    host = plan.request.host
    devices = f"{host.hosts * host.gpus} x {host.gpu}" if host.gpus else "no GPU"
    cost = f"step at most {time_text(plan.cost.step_seconds)} ({devices}, {host.said})"
    numbers = ", ".join([cost, *(["memory of a rank: " + ", ".join(memory)] if memory else [])])
    return [
        Lens(span=place, text=f"{numbers} | {meshes}"),
        Lens(span=place, text=f"{title} | {rates}"),
    ]


def plan_page(document: Document) -> str | None:
    """Return the plan as `forgec plan` prints it."""
    planned = document.planned
    if planned is None:
        return None
    program, graph, plan = planned
    summary = summary_lines(program, graph, plan)
    return render_plan(program, graph, plan, summary=summary, identity="")


def graph_page(document: Document, view: str = "dataflow", format_: str = "html") -> str | None:
    """Return the drawing of the graph of the file as written."""
    from forgedsl.drawing.drawing import Drawing

    planned = document.planned
    if planned is None:
        return None
    program, graph, plan = planned
    drawing = Drawing(program=program, graph=graph, plan=plan, sources=document.state().sources)
    return drawing.render(view, format_)
