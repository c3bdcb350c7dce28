"""The page of every code that the compiler can print.

    forgedsl/explain/pages.md           codes of syntax, resolution, graph, plan and types
    docstrings of forgedsl/lint/rules   codes of lint

`pages()` maps codes to pages in the order of the families S F T L A P R D X N.
"""

from __future__ import annotations

import functools
import inspect
import re
from importlib import resources

from forgedsl.records import dataclass

FAMILIES = {
    "S": "syntax", "F": "names, settings and flow", "T": "types", "L": "losses",
    "A": "age and schedule", "P": "placement and memory", "R": "rewards", "D": "data and sampling",
    "X": "Python", "N": "notes",
}  # fmt: skip
LEVELS = {"E": "error", "D": "error, can be suppressed", "W": "warning", "I": "information"}
_SECTION = re.compile(r"^## ([A-Z]\d{3}) ([\w-]+) \(([EDWI])\)\n", re.M)
_EXAMPLE = re.compile(r"^```forge (bad|good)\n(.*?)^```\n?", re.M | re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`summary` is one sentence, `text` the explanation; `bad` gives the code, `good` does not."""

    code: str
    name: str
    level: str  # E D W I
    summary: str
    text: str
    bad: str = ""
    good: str = ""


@functools.cache
def pages() -> dict[str, Page]:
    """All pages by code."""
    found = {page.code: page for page in (*_written(), *_of_rules())}
    order = list(FAMILIES)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0])))


def _written() -> list[Page]:
    text = resources.files("forgedsl.explain").joinpath("pages.md").read_text("utf-8")
    parts = _SECTION.split(text)
    found = []
    for code, name, level, body in zip(*(parts[i::4] for i in range(1, 5)), strict=True):
        examples = {kind: example.rstrip("\n") for kind, example in _EXAMPLE.findall(body)}
        summary, _, rest = _EXAMPLE.sub("", body).strip().partition("\n")
        found.append(
            Page(
                code=code,
                name=name,
                level=level,
                summary=summary,
                text=rest.strip("\n").rstrip(),
                bad=examples.get("bad", ""),
                good=examples.get("good", ""),
            )
        )
    return found


def _of_rules() -> list[Page]:
    from forgedsl.lint.registry import CODES, rule_of

    found = []
    for rule in map(rule_of, CODES):
        first, _, rest = (inspect.getdoc(rule) or "").partition("\n")
        summary = first.removeprefix(f"{rule.finding.code} {rule.finding.name}: ")
        found.append(
            Page(
                code=rule.finding.code,
                name=rule.finding.name,
                level=rule.finding.level,
                summary=summary[:1].upper() + summary[1:],
                text=rest.strip("\n").rstrip(),
            )
        )
    return found


def text_page(page: Page) -> str:
    """Format a page for the terminal."""
    parts = [f"{page.code} {page.name}  ({LEVELS[page.level]})", page.summary, page.text]
    if page.bad:
        parts.append(f"This gives {page.code}:\n\n{_indented(page.bad)}")
        parts.append(f"This does not:\n\n{_indented(page.good)}")
    if page.level != "E":
        parts.append(f"If the program is correct: `# forge: allow[{page.code}] reason`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_page(page: Page) -> str:
    """Format a page for docs/reference."""
    parts = [f"## {page.code} {page.name}", f"*{LEVELS[page.level]}* {page.summary}", page.text]
    if page.bad:
        parts.append(f"Gives {page.code}:\n\n```text\n{page.bad}\n```")
        parts.append(f"Does not:\n\n```text\n{page.good}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
