"""`python -m forgedsl.docs.site`: build the site into site/, and check it."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from forgedsl.docs.site import assets, generated
from forgedsl.docs.site.links import dead_links
from forgedsl.docs.site.staging import PAGES, DeadLink, Stage, title_of
from forgedsl.explain.codes import FAMILIES

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBERS = (
    "losses.md",
    "compiling.md",
    "accidents.md",
    "certificates.md",
    "benchmarks.md",
    "deep.md",
)


def main() -> int:
    """Build and check; return the exit code."""
    parser = argparse.ArgumentParser(prog="make site", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder of the site")
    parser.add_argument("--without-playground", action="store_true", help="needs no npm")
    options = parser.parse_args()
    out: Path = options.out
    root = Path.cwd()
    build = root / "build/site"
    shutil.rmtree(build, ignore_errors=True)
    stage = Stage(root, build / "docs")
    try:
        nav = staged(stage)
        if not options.without_playground:
            assets.write(root, build / "docs/playground")
            page = (root / "docs/site/playground/page.html").read_text("utf-8")
            stage.write("playground.md", page)
            nav.insert(1, {"Playground": "playground.md"})
    except (DeadLink, assets.AssetError) as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    settings = (root / "docs/site/zensical.toml").read_text("utf-8")
    head, mark, rest = settings.partition("[project]\n")
    text = f"{head}{mark}nav = {toml(nav)}\n{rest}"
    (build / "zensical.toml").write_text(text, encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=build, capture_output=True, text=True, check=False)
    told = COLOURS.sub("", done.stdout + done.stderr)
    if done.returncode:
        print(told, file=sys.stderr)
        return done.returncode
    dead = dead_links(build / "html")
    if dead:
        print("\n".join(dead), file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(build / "html", out)
    print(f"{out}: {len([*out.rglob('*.html')])} pages, no dead link")
    return 0


def staged(stage: Stage) -> list[object]:
    """Write all pages; return the navigation."""
    root = stage.root
    texts = [*sorted((root / "docs").rglob("*.md")), *(root / path for path in PAGES)]
    for path in dict.fromkeys(texts):
        name = path.relative_to(root).as_posix()
        if name != "docs/reference/rules.md":
            stage.page(name)
    for path in (root / "docs/images").glob("*"):
        (stage.folder / "images").mkdir(exist_ok=True)
        shutil.copy(path, stage.folder / "images" / path.name)
    stage.write("assets/site.css", (root / "docs/site/site.css").read_text("utf-8"))
    rules = generated.rules(stage)
    pipelines = generated.pipelines(stage)
    generated.sources(stage)
    return navigation(stage, rules, pipelines)


def navigation(
    stage: Stage, rules: list[tuple[str, str]], pipelines: list[tuple[str, str]]
) -> list[object]:
    """Return the tabs. Chapters of the guide have a number, topics follow by title."""

    def entry(path: str) -> tuple[str, str]:
        return title_of((stage.folder / path).read_text("utf-8"), path), path

    def entries(folder: str) -> list[tuple[str, str]]:
        return [entry(f"{folder}/{path.name}") for path in (stage.folder / folder).glob("*.md")]

    guide = sorted(entries("guide"), key=lambda item: item[1])
    chapters = [item for item in guide if item[1].split("/")[1][0].isdigit()]
    topics = sorted(item for item in guide if item not in chapters)
    sources = [(path, f"sources/{path}.md") for path in sorted(stage.sources)]
    families: dict[str, list[tuple[str, str]]] = {}
    for title, path in rules:
        families.setdefault(f"{title[0]}: {FAMILIES[title[0]]}", []).append((title, path))
    return [
        {"Home": "index.md"},
        {"Guide": [{"Chapters": listed(chapters)}, {"Topics": listed(topics)}]},
        {"Reference": [
            *listed(sorted(entries("reference"))),
            {"Rules": ["reference/rules/index.md",
                       *({family: listed(pages)} for family, pages in families.items())]},
        ]},
        {"Pipelines": ["pipelines/index.md", *listed(pipelines)]},
        {"Results": listed(entry(path) for path in NUMBERS)},
        {"Design": listed(sorted(entries("design")))},
        {"Project": [*listed(entry(path) for path in list(PAGES.values())[:3]),
                     {"Linked files": listed(sources)}]},
    ]  # fmt: skip


def listed(pages: object) -> list[object]:
    """Return entries of the navigation."""
    return [{title: path} for title, path in pages]  # type: ignore[attr-defined]


def toml(value: object) -> str:
    """Return strings, lists and mappings as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    raise SystemExit(main())
