"""`forgec doc WHAT`: reference documentation of a file, the standard library, or the compiler.

    forgec doc pipelines/grpo_math.forge       its parameters, declarations, losses, flow, profiles
    forgec doc std/rl -o docs --format html    a standard module, as a page
    forgec doc dapo                            one entry of the standard library
    forgec doc dataset                         a kind and its settings
    forgec doc settings                        a reference: rules kinds settings expressions cli

The text for a file comes from its `##` comments. Markdown shows the flow as a Mermaid diagram, HTML
as a picture; neither needs a network. Exit 0; 1 if the file has errors; 2 if WHAT is unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from forgedsl.cli.parser import Parser
from forgedsl.errors import writing


class Format(StrEnum):
    MARKDOWN = "markdown"
    HTML = "html"


def parser() -> Parser:
    parser = Parser("doc", command.__doc__, "WHAT")
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="a .forge file, std/rl, a name of std/rl, or a page such as rules",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="a folder, or a file NAME.md or NAME.html"
    )
    parser.add_choice("format", Format, Format.MARKDOWN, help="output format")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(what: str, out: Path | None, format_: Format) -> None:
    """Write reference documentation from the comments of a file, or of the compiler itself.

    Examples:
      forgec doc pipelines/grpo_math.forge > grpo_math.md
      forgec doc pipelines/grpo_math.forge -o docs --format html
      forgec doc std/rl
      forgec doc dapo
      forgec doc rules
    """
    found = _file(Path(what)) if what.endswith(".forge") else _known(what)
    if isinstance(found, int):
        raise SystemExit(found)
    name, text, drawing = found
    is_file = out is not None and out.suffix in (".md", ".html") and not out.is_dir()
    if format_ is Format.HTML or (is_file and out is not None and out.suffix == ".html"):
        from forgedsl.reference.html import page

        text = page(text, drawing=drawing)
    if out is None:
        sys.stdout.write(text)
        return
    with writing(out):
        path = out if is_file else out / f"{name}.{'html' if format_ is Format.HTML else 'md'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    print(path, file=sys.stderr)


def _file(path: Path) -> tuple[str, str, str] | int:
    """Return name, Markdown and picture of a .forge file, or the exit code after printing its
    errors."""
    from forgedsl import api
    from forgedsl.cli.compiling import UNREADABLE, print_diagnostics
    from forgedsl.hir.resolve import is_module
    from forgedsl.ir.program import Function
    from forgedsl.reference.markdown import block
    from forgedsl.reference.module import Page

    loaded = api.load(path, profile="none", allow_missing_params=True)
    if loaded.program is None or loaded.file is None or loaded.reporter.has_errors:
        print_diagnostics(loaded)
        return 2 if any(d.code == UNREADABLE for d in loaded.reporter) else 1
    mermaid, svg = ("", "") if is_module(loaded.file) else _drawings(path)
    named = loaded.program.scope.names.items()
    page = Page(
        title=path.stem,
        file=loaded.file,
        source=loaded.sources[str(path)],
        functions={name: value for name, value in named if isinstance(value, Function)},
        drawing=block(mermaid, "mermaid") if mermaid else "",
    )
    return path.stem, page.text(), svg


def _drawings(path: Path) -> tuple[str, str]:
    """Draw the flow as Mermaid and as SVG; empty if the file has no plan without overrides."""
    from forgedsl.cli.graph import drawing_of

    drawing = drawing_of(path, profile="none", overrides=())
    if isinstance(drawing, int):
        return "", ""
    return drawing.render("dataflow", "mermaid"), drawing.render("dataflow", "svg")


def _known(what: str) -> tuple[str, str, str] | int:
    """Return the documentation of a name of the standard library or of the compiler."""
    from forgedsl.cli.reference import REFERENCES, reference
    from forgedsl.explain.codes import markdown_page, pages
    from forgedsl.hir.modules import standard_modules
    from forgedsl.reference import kinds, library
    from forgedsl.schema import ALL_KINDS

    if what in REFERENCES:
        return what, reference(what), ""
    if what in standard_modules():
        return what.replace("/", "_"), library.standard(what), ""
    if what.upper() in pages():
        return what.upper(), markdown_page(pages()[what.upper()]).replace("## ", "# ", 1), ""
    if what in ALL_KINDS:
        return what, kinds.entry(what), ""
    if f"std/{what}" in standard_modules():
        return what, library.standard(f"std/{what}"), ""
    from forgedsl import extensions
    from forgedsl.reference import glossary

    extensions.use_near(Path.cwd() / what)
    text = library.entry(what.removeprefix("rl.")) or glossary.word(what)
    if text is not None:
        return what, text, ""
    from forgedsl.mistakes.suggest import did_you_mean, nearest

    names = (*library.module_page("std/rl").functions, *glossary.names(), *REFERENCES)
    hint = did_you_mean(nearest(what, [*names, *standard_modules()]))
    print(f"forgec doc: there is no page for `{what}`" + (f"; {hint}" if hint else ""),
          file=sys.stderr)  # fmt: skip
    print(f"  pages: a .forge file, {', '.join(standard_modules())}, a name in it, a kind, a "
          f"code, or {', '.join(REFERENCES)}", file=sys.stderr)  # fmt: skip
    return 2
