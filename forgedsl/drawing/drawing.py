"""Renders every view of a planned program in every format.

Program + Graph + Plan + sources -> Drawing.render(view, format) -> text
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forgedsl.drawing.picture import Picture, picture, title_text
from forgedsl.drawing.scene import Scene
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Program
from forgedsl.plan.plan import Plan
from forgedsl.source import SourceFile, Span

if TYPE_CHECKING:
    from forgedsl.drawing.views import Pass

VIEWS = ("dataflow", "mesh", "schedule", "passes")
CHAINS = ("dataflow", "passes")
"""views that are boxes and arrows; the others have their own layout"""
FORMAT_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A program that has been planned."""

    program: Program
    graph: Graph
    plan: Plan
    sources: Mapping[str, SourceFile]

    def render(self, view: str, format_: str) -> str:
        """Render a view in a format; the text ends in a newline."""
        makers: dict[str, Callable[[str], str]] = {
            "text": self._text,
            "json": self._json,
            "svg": self._svg,
            "html": self._html,
            "dot": self._dot,
            "mermaid": self._mermaid,
        }
        return makers[format_](view)

    # ---- what is drawn

    def place(self, span: Span) -> str:
        """Format a span: "grpo_math.forge:63:3"."""
        source = self.sources.get(span.file)
        if source is None:
            return ""
        line, column = source.position(span.start)
        return f"{source.name.rpartition('/')[2]}:{line}:{column}"

    def picture(self, view: str) -> Picture:
        """Return the boxes and arrows of a view."""
        from forgedsl.drawing.views import passes_picture
        from forgedsl.drawing.views_pictures import mesh_picture, schedule_picture

        if view == "passes":
            return passes_picture(self.program, self._passes())
        if view != "dataflow":
            make = mesh_picture if view == "mesh" else schedule_picture
            return make(self.program, self.graph, self.plan)
        return picture(self.program, self.graph, self.plan, self.place)

    def scene(self, view: str) -> Scene:
        """Return a view with coordinates."""
        from forgedsl.drawing.scene_dataflow import dataflow_scene
        from forgedsl.drawing.views import mesh_scene, schedule_scene

        if view in CHAINS:
            return dataflow_scene(self.picture(view))
        make = mesh_scene if view == "mesh" else schedule_scene
        return make(self.program, self.graph, self.plan, self.place)

    def _passes(self) -> tuple[Pass, ...]:
        from forgedsl.drawing.views import passes_of

        main = self.sources[self.program.file]
        return passes_of(self.program, self.graph, self.plan, lines=len(main.text.splitlines()))

    # ---- formats

    def _text(self, view: str) -> str:
        from forgedsl.drawing.render_text import render_text
        from forgedsl.drawing.views_text import mesh_text, passes_text, schedule_text

        if view == "dataflow":
            return render_text(self.program, self.graph, self.plan)
        title = f"{title_text(self.program)}\n\n"
        if view == "mesh":
            return title + mesh_text(self.plan)
        if view == "schedule":
            return title + schedule_text(self.graph, self.plan)
        return title + passes_text(self._passes())

    def _json(self, view: str) -> str:
        from forgedsl.drawing.render_json import render_json
        from forgedsl.plan.timeline import timeline

        if view == "dataflow":
            return render_json(self.program, self.graph, self.plan)
        head = {"format_version": FORMAT_VERSION, "name": self.program.name, "view": view,
                "profile": self.program.profile}  # fmt: skip
        body: dict[str, Any]
        if view == "passes":
            body = {"passes": [asdict(p) for p in self._passes()]}
        elif view == "mesh":
            body = {"meshes": [{**asdict(m), "degrees": dict(m.degrees)} for m in self.plan.meshes]}
        else:
            body = {"bars": [asdict(bar) for bar in timeline(self.graph, self.plan)]}
        return json.dumps({**head, **body}, indent=2) + "\n"

    def _svg(self, view: str) -> str:
        from forgedsl.drawing.render_svg import scene_svg

        return scene_svg(self.scene(view))

    def _html(self, view: str) -> str:
        from forgedsl.drawing.render_html import render_html

        own = [s for s in self.sources.values() if not s.name.startswith(("<", "forgedsl:"))]
        text = self.plan.schedule.text.splitlines()
        facts = [("schedule", text[0])]
        facts += [("policy age", text[-1])] if len(text) > 1 else []
        facts.append(("loss", self.graph.loss))
        return render_html(
            {name: self.scene(name) for name in VIEWS},
            sorted(own, key=lambda s: (s.name != self.program.file, s.name)),
            first=view,
            title=title_text(self.program),
            facts=facts,
        )

    def _dot(self, view: str) -> str:
        from forgedsl.drawing.render_dot import render_dot

        return render_dot(self.picture(view))

    def _mermaid(self, view: str) -> str:
        from forgedsl.drawing.render_mermaid import render_mermaid
        from forgedsl.drawing.views_pictures import gantt

        if view == "schedule":
            return gantt(self.program, self.graph, self.plan)
        return render_mermaid(self.picture(view))
