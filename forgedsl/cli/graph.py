"""`forgec graph FILE`: draws a pipeline as text, as a picture, or for other tools.

    FILE.forge --load--> Program --graph--> Graph --plan--> Plan --render--> stdout or -o

    view       text  svg  html  json  dot  mermaid
    dataflow    x     x    x     x    x      x
    mesh        x     x    x     x    x      x
    schedule    x     x    x     x    x      x   (a Gantt chart)
    passes      x     x    x     x    x      x

HTML contains all views and opens with the requested one. The hosts are those of the file's
`cluster`, else this host, or those that `--host` describes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli import passes
from forgedsl.cli.parser import Parser
from forgedsl.errors import write_text

if TYPE_CHECKING:
    from forgedsl.api import Loaded
    from forgedsl.drawing.drawing import Drawing
    from forgedsl.ir.graph import Graph
    from forgedsl.ir.program import Program
    from forgedsl.plan.plan import Plan
    from forgedsl.sizes.hosts import Host


class Format(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"
    SVG = "svg"
    HTML = "html"


class View(StrEnum):
    DATAFLOW = "dataflow"
    MESH = "mesh"
    SCHEDULE = "schedule"
    PASSES = "passes"


def parser() -> Parser:
    parser = Parser("graph", command.__doc__, "FILE")
    passes.add_file(parser)
    parser.add_choice("view", View, View.DATAFLOW, help="what to show")
    parser.add_choice("format", Format, Format.TEXT, help="how to show it")
    parser.add_argument("-o", "--out", type=Path, metavar="PATH", help="write it to a file")
    passes.add_profile(parser)
    parser.add_overrides()
    passes.add_host(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path,
    view: View,
    format_: Format,
    out: Path | None,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    host: str,
) -> None:
    """Draw FILE: its dataflow, its meshes, its schedule, or the passes that compiled it.

    Examples:
      forgec graph pipelines/grpo_math.forge
      forgec graph pipelines/grpo_math.forge --format html -o graph.html --profile cluster
      forgec graph pipelines/grpo_math.forge --view schedule --format mermaid
      forgec graph pipelines/grpo_math.forge --view mesh generator.replicas=2
    """
    from forgedsl.cli.host import host_of

    drawing = drawing_of(
        file, profile=profile, overrides=tuple(set_ or ()), set_files=tuple(set_file or ()),
        host=host_of(host, "graph"),
    )  # fmt: skip
    if isinstance(drawing, int):
        raise SystemExit(drawing)
    text = drawing.render(view, format_)
    if out is None:
        sys.stdout.write(text)
    else:
        write_text(out, text)
        print(out, file=sys.stderr)


def drawing_of(
    file: Path,
    *,
    profile: str,
    overrides: tuple[str, ...],
    set_files: tuple[Path, ...] = (),
    host: Host | None = None,
) -> Drawing | int:
    """Plan a program and return its drawing. If it has errors, print them and return the exit code.

    Without a host, the plan is for the host that lint assumes.
    """
    from forgedsl.cli.compiling import exit_code, print_planned
    from forgedsl.passes import Request, compile_program
    from forgedsl.sizes.hosts import Host

    host = host or Host()
    compiled = compile_program(
        Request(path=file, profile=profile, overrides=overrides, set_files=set_files, host=host),
        until="plan",
    )
    loaded, state = compiled.loaded, compiled.state
    print_planned(loaded, profile, host)
    if state is None or state.plan is None or loaded.reporter.has_errors:
        return exit_code(loaded)
    assert state.hir is not None
    assert state.graph is not None
    return drawing_from(loaded, state.hir, state.graph, state.plan)


def drawing_from(loaded: Loaded, program: Program, graph: Graph, planned: Plan) -> Drawing:
    """Make the drawing of a planned program."""
    from forgedsl.drawing.drawing import Drawing

    return Drawing(program=program, graph=graph, plan=planned, sources=loaded.sources)
