"""`forgec graph FILE`: the topology of a pipeline, as text or for other tools.

    FILE.forge --load--> Program --graph--> Graph --plan--> Plan --render--> stdout

The hosts are those that the file's `cluster` declares, else one host of 8 GPUs; nothing is probed.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forgedsl.graph.ir import Graph
    from forgedsl.hir.ir import Program
    from forgedsl.plan.plan import Plan


class Format(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"
    SVG = "svg"


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a .forge file")],
    format_: Annotated[Format, typer.Option("--format", help="what to print")] = Format.TEXT,
    profile: Annotated[str, typer.Option(help="a profile of the file; none: as written")] = "auto",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=v", help="override a setting")
    ] = None,
) -> None:
    """Print the dataflow graph of FILE."""
    text = graph_text(file, format_, profile=profile, overrides=tuple(set_ or ()))
    if text is None:
        raise typer.Exit(1)
    sys.stdout.write(text)


def graph_text(
    file: Path, format_: Format, *, profile: str, overrides: tuple[str, ...]
) -> str | None:
    """The rendered graph; None after printing diagnostics."""
    from forgedsl import api
    from forgedsl.cli.compiling import print_diagnostics
    from forgedsl.graph.dataflow import build
    from forgedsl.plan.plan import plan

    loaded = api.load(file, profile=profile, overrides=overrides)
    text = None
    if loaded.program is not None and not loaded.reporter.has_errors:
        graph = build(loaded.program, reporter=loaded.reporter)
        if graph is not None:
            planned = plan(loaded.program, graph, reporter=loaded.reporter, base_dir=file.parent)
            if planned is not None:
                text = render(loaded.program, graph, planned, format_)
    print_diagnostics(loaded)
    return text


def render(program: Program, graph: Graph, plan: Plan, format_: Format) -> str:
    """The graph in one format, ending in a newline."""
    from forgedsl.graph.picture import picture

    match format_:
        case Format.TEXT:
            from forgedsl.graph.render_text import render_text

            return render_text(program, graph, plan)
        case Format.JSON:
            from forgedsl.graph.render_json import render_json

            return render_json(program, graph, plan)
        case Format.MERMAID:
            from forgedsl.graph.render_mermaid import render_mermaid

            return render_mermaid(picture(program, graph, plan))
        case Format.DOT:
            from forgedsl.graph.render_dot import render_dot

            return render_dot(picture(program, graph, plan))
        case Format.SVG:
            from forgedsl.graph.render_svg import render_svg

            return render_svg(picture(program, graph, plan))
