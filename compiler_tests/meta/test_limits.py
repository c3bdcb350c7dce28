"""Limits of size: a module fits in 600 lines, a function in 50."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("forgedsl", "runtime")
MODULE, FUNCTION = 600, 50

SOURCES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


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
