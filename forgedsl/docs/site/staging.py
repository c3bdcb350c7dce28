"""Copies Markdown into the folder that the site is built from, with links that work there.

In the repository a link may lead out of docs/, to a pipeline or another source file. On the site
each of these has a page: `Stage.address` maps a path of the repository to that page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$|(?<=\n\n)(?: {4}[^\n]*\n)+", re.M | re.S)
HEAD = re.compile(r"^(```\w+) (?:(\w+\.forge)|[^\n`]+?)(?: gives \w+)?$", re.M)
"""the first line of a code block that names more than its language: a file, or words that only the
tests read"""
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LIST = re.compile(r"^(?:[-*]|\d+\.) ")
RULE = re.compile(r"([a-z]\d{3})-[\w-]+")
PAGES = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "pipelines/README.md": "pipelines/index.md",
    "docs/reference/rules.md": "reference/rules/index.md",
}
"""pages that are not where the folders say: path in the repository -> path on the site"""


class DeadLink(Exception):
    """A link to a file that does not exist."""


class Stage:
    """The staging folder. `sources` are the files that pages link to and that are no Markdown."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.sources: dict[str, None] = {}

    def write(self, path: str, text: str) -> None:
        """Write a page or an asset."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")

    def address(self, path: str, anchor: str = "") -> str:
        """Return the page of a path of the repository, with its anchor."""
        if path == "docs/reference/rules.md" and (rule := RULE.fullmatch(anchor)):
            return f"reference/rules/{rule[1].upper()}.md"
        hashed = f"#{anchor}" if anchor else ""
        if path in PAGES:
            return PAGES[path] + hashed
        if path.startswith("docs/") and path.endswith((".md", ".png")):
            return path.removeprefix("docs/") + hashed
        if re.fullmatch(r"pipelines/\w+\.forge", path):
            return path.removesuffix(".forge") + ".md"
        self.sources[path] = None
        return f"sources/{path}.md"

    def page(self, path: str) -> None:
        """Copy a Markdown file of the repository."""
        text = (self.root / path).read_text("utf-8")
        self.write(self.address(path), self.rewritten(text, path))

    def rewritten(self, text: str, path: str) -> str:
        """Return the text of the file `path` with links as they are on the site."""
        here = posixpath.dirname(self.address(path))

        def link(match: re.Match[str]) -> str:
            target, _, anchor = match[1].partition("#")
            if re.match(r"[a-z]+:", match[1]) or (not target and path not in PAGES):
                return match[0]
            found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            found = found if target else path
            if not (self.root / found).is_file():
                raise DeadLink(f"{path}: there is no file {found}")
            return f"]({posixpath.relpath(self.address(found, anchor), here or '.')})"

        def prose(part: str) -> str:
            return outside(CODE, part, lambda words: LINK.sub(link, words))

        return outside(FENCE, HEAD.sub(_headed, text), lambda part: prose(spaced(part)))


def _headed(match: re.Match[str]) -> str:
    """Return the first line of a block as Zensical reads it: a name becomes the title."""
    return f'{match[1]} title="{match[2]}"' if match[2] else match[1]


def outside(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Change what lies between the matches of a pattern."""
    parts, place = [], 0
    for match in pattern.finditer(text):
        parts += [change(text[place : match.start()]), match[0]]
        place = match.end()
    return "".join([*parts, change(text[place:])])


def spaced(text: str) -> str:
    """Put an empty line before a list, and indent what is within it by four: Python-Markdown needs
    both, CommonMark neither."""
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        is_item = LIST.match(line) is not None
        if is_item and not in_list and lines and lines[-1].strip():
            lines.append("")
        in_list = is_item or (in_list and bool(line.strip()))
        inner = len(line) - len(line.lstrip(" "))
        lines.append(" " * inner + line if in_list else line)
    return "\n".join(lines)


def title_of(text: str, default: str) -> str:
    """Return the first heading of a page, without marks."""
    match = re.search(r"^# (.+)$", text, re.M)
    return match[1].replace("`", "").strip() if match else default
