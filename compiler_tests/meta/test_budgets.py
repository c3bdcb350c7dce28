"""Sizes: raising a budget is a reviewed change of one line here.

A package's budget counts lines of code: those with a token that is no comment and no docstring, so
that explaining costs nothing. A module's and a function's count every line.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# the runtime got processes for rewards, guards, a sandbox, transports, updates of a step; both
# got environments of several turns, then judges, value heads, hosts
BUDGET = {"forgedsl": 37_850, "runtime": 18_460}
MODULE, FUNCTION = 600, 50

SOURCES = sorted(p for folder in BUDGET for p in (ROOT / folder).rglob("*.py"))


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Lines that hold code."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines: set[int] = set()
    fresh = True  # at the start of a statement, where a lone string is documentation
    for i, token in enumerate(tokens):
        lone = token.type == tokenize.STRING and fresh and tokens[i + 1].type == tokenize.NEWLINE
        if token.type not in SILENT and not lone:
            lines |= set(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            fresh = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return len(lines)


def test_comments_and_docstrings_are_not_code() -> None:
    assert code_lines('"""Doc\nstring."""\n\n# why\nx = (\n    1\n)\ns = "text"\n') == 4


@pytest.mark.parametrize("folder", BUDGET)
def test_package_budget(folder: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")]
    assert sum(code_lines(text) for text in texts) <= BUDGET[folder]


def test_modules_fit_in_their_budget() -> None:
    long = {str(path.relative_to(ROOT)): length(path) for path in SOURCES if length(path) > MODULE}
    assert long == {}


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION
    ]
    assert long == []


def test_modules_say_what_they_are() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_sources_are_ascii() -> None:
    assert [str(p.relative_to(ROOT)) for p in SOURCES if not p.read_bytes().isascii()] == []


def test_the_runtime_knows_no_algorithm() -> None:
    names = r"grpo|dapo|ppo|gspo|cispo|rloo|dpo|ipo|sapo|gmpo|luspo|dppo|icepop|opo|maxrl"
    word = re.compile(rf"(?<![a-z])({names})(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "runtime").rglob("*"))
        if path.suffix in (".py", ".j2")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if word.search(line)
    ]
    assert found == []
