"""Pages that are made when the site is built: rules, shipped pipelines, linked source files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from forgedsl.docs.pictures import both
from forgedsl.docs.site.staging import Stage
from forgedsl.drawing.drawing import Drawing
from forgedsl.explain.codes import FAMILIES, LEVELS, Page, pages
from forgedsl.ide.hints import plan_page
from forgedsl.ide.workspace import Document, Workspace
from forgedsl.reference.markdown import block, join, table
from forgedsl.reference.rules import INTRODUCTION

LANGUAGES = {".py": "python", ".ipynb": "json", ".forge": "forge", ".toml": "toml"}
ROW = re.compile(r"^\| `?(\w+)`? \|(.*)\|$", re.M)
EXAMPLE = re.compile(r"(?:^ {4}[^\n]*\n)+(?:\n+(?: {4}[^\n]*\n)+)*", re.M)
"""an indented block, in which a page of a rule shows .forge text"""
PICTURES = {"smollm_math": "smollm_report.png"}
"""pictures of docs/images that show a run of a pipeline"""


def rules(stage: Stage) -> list[tuple[str, str]]:
    """Write the overview and a page for each rule; return titles and paths of the pages."""
    known = pages()
    parts = ["# Rules", INTRODUCTION]
    for letter, family in FAMILIES.items():
        members = [page for page in known.values() if page.code[0] == letter]
        rows = [(f"[{p.code}]({p.code}.md)", p.name, LEVELS[p.level], p.summary) for p in members]
        if rows:
            parts += [f"## {letter}: {family}"]
            parts += [table(("code", "name", "level", "what it says"), rows)]
    stage.write("reference/rules/index.md", join(parts))
    for page in known.values():
        stage.write(f"reference/rules/{page.code}.md", _rule(page))
    return [(f"{page.code} {page.name}", f"reference/rules/{page.code}.md")
            for page in known.values()]  # fmt: skip


def _rule(page: Page) -> str:
    parts = [f"# {page.code} {page.name}", f"*{LEVELS[page.level]}* {page.summary}"]
    parts.append(EXAMPLE.sub(_coloured, page.text + "\n"))
    if page.bad:
        parts += [f"Gives {page.code}:", block(page.bad, "forge")]
        parts += ["Does not:", block(page.good, "forge")]
    return join(parts)


def _coloured(match: re.Match[str]) -> str:
    return block(textwrap.dedent(match[0]), "forge") + "\n"


def pipelines(stage: Stage) -> list[tuple[str, str]]:
    """Write a page for each shipped pipeline; return their titles and paths."""
    workspace = Workspace()
    found = []
    for path in sorted((stage.root / "pipelines").glob("*.forge")):
        document = workspace.document(path)
        stage.write(f"pipelines/{path.stem}.md", join(_pipeline(stage, path, document)))
        found.append((path.stem, f"pipelines/{path.stem}.md"))
    return found


def _pipeline(stage: Stage, path: Path, document: Document) -> Iterator[str]:
    name = path.stem
    yield f"# {name}"
    yield _headline(document.text)
    shown = _cells(stage, "pipelines/README.md", name, f"pipelines/{name}.md")
    if shown:
        yield f"It shows {shown[0]}."
    yield block(f"forgec run pipelines/{name}.forge", "console")
    yield from _measured(stage, name, shown)
    yield from _drawn(stage, name, document)
    yield "## Source"
    yield block(document.text, "forge")


def _headline(text: str) -> str:
    """Return the first comment of documentation of a file."""
    match = re.search(r"(?:^##(?: [^\n]*)?\n)+", text, re.M)
    return re.sub(r"^## ?", "", match[0], flags=re.M) if match else ""


def _cells(stage: Stage, page: str, name: str, path: str) -> list[str]:
    """Return the cells of the row that a table has for a pipeline, with links as on `path`."""
    text = (stage.root / page).read_text("utf-8")
    if page.startswith("docs/"):
        text = text.split("\n## Learning on two cores\n")[1].split("\n## ")[0]
    text = stage.rewritten(text, page)
    row = next((match for match in ROW.finditer(text) if match[1] == name), None)
    return [cell.strip() for cell in row[2].split("|")] if row else []


def _measured(stage: Stage, name: str, shown: list[str]) -> Iterator[str]:
    rewards = shown[1] if len(shown) > 1 else ""
    learned = _cells(stage, "docs/benchmarks.md", name, "")
    picture = PICTURES.get(name)
    if not (rewards or learned or picture):
        return
    yield "## Measured"
    if rewards:
        which = "mean reward of steps 1 to 10, then of 11 to 20, where nothing else is said"
        yield f"First 20 steps ({which}): {rewards}"
    if learned:
        yield table(("what", "seed 17", "seed 2", "seed 3"), [learned])
        yield "How it was measured: [benchmarks](../benchmarks.md#learning-on-two-cores)."
    if picture:
        yield f"![the report of a run](../images/{picture})"


def _drawn(stage: Stage, name: str, document: Document) -> Iterator[str]:
    """Yield graph and plan of the file as written."""
    planned = document.planned
    if planned is None:
        raise ValueError(f"{document.name} has no plan: {[*document.state().reporter]}")
    program, graph, plan = planned
    drawing = Drawing(program=program, graph=graph, plan=plan, sources=document.state().sources)
    svg = drawing.render("dataflow", "svg")
    for theme, text in both(svg).items():
        stage.write(f"pipelines/{name}.{theme}.svg", text)
    yield "## Graph"
    yield f"""<div class="graph" tabindex="0">
<img alt="dataflow of {name}" src="{name}.light.svg#only-light">
<img alt="dataflow of {name}" src="{name}.dark.svg#only-dark">
</div>"""
    yield "## Plan"
    yield "Of the file as written, without a profile:"
    yield block(plan_page(document) or "")


def sources(stage: Stage) -> None:
    """Write a page for each source file that a page links to."""
    for path in stage.sources:
        text = (stage.root / path).read_text("utf-8")
        fence = "````" if "```" in text else "```"
        language = LANGUAGES.get(Path(path).suffix, "text")
        stage.write(
            f"sources/{path}.md", f"# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
        )
