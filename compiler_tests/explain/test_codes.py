"""Every code has a page, and the examples of the pages are true."""

import importlib.util
import re
from pathlib import Path

import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.explain.codes import FAMILIES, pages
from forgedsl.hir.context import NAMES
from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, parse

ROOT = Path(__file__).parents[2]
CODE = re.compile(rf'"([{"".join(FAMILIES)}]\d{{3}})(?:"|(?= [\w-]+: ))')
NAMED = re.compile(r'"([A-Z]\d{3})",\s+"([a-z][a-z-]+)",')
NO_CODE = {"A100"}  # a GPU
WITHOUT_EXAMPLE = {
    "S011", "S012", "S013", "S014", "S015", "S016",  # what no person types
    "F106", "P205", "P211", "P214", "A307", "A308",  # sizes: the small program has none
    "D611", "D613", "D614", "D615", "D616", "D617", "D669",  # need rows
    "F116", "F121", "F131", "P212", "X801", "X804", "X805",  # need other files
    "D620", "D621", "D622",  # an environment is a file
}  # fmt: skip


def base():
    path = ROOT / "compiler_tests/rules/conftest.py"
    spec = importlib.util.spec_from_file_location("rules_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BASE


def codes_of_the_code():
    found = {}
    for path in sorted((ROOT / "forgedsl").rglob("*.py")):
        if path.parent.name != "explain":
            for code in CODE.findall(path.read_text("utf-8")):
                found.setdefault(code, path.relative_to(ROOT).as_posix())
    return {code: place for code, place in found.items() if code not in NO_CODE}


@pytest.mark.parametrize(("code", "place"), sorted(codes_of_the_code().items()))
def test_a_code_of_the_compiler_has_a_page(code, place):
    assert code in pages(), place


def test_no_page_is_about_a_code_that_does_not_exist():
    assert set(pages()) - set(codes_of_the_code()) == set()


def test_names_are_those_of_the_code():
    given = dict(NAMES)
    for path in sorted((ROOT / "forgedsl").rglob("*.py")):
        given |= dict(NAMED.findall(path.read_text("utf-8")))
    wrong = {c: (n, pages()[c].name) for c, n in given.items() if c in pages()}
    wrong = {c: pair for c, pair in wrong.items() if pair[0] != pair[1] and c != "S007"}
    assert wrong == {}


@pytest.mark.parametrize("page", pages().values(), ids=lambda page: page.code)
def test_a_page_says_something(page):
    assert page.summary.endswith((".", ":"))
    assert len(page.summary) <= 110
    assert page.text or page.bad or len(page.summary) > 60


def key(decl):
    """What a declaration of an example replaces in the program."""
    if isinstance(decl, ast.BlockDecl):
        return (decl.kind, None if decl.kind in {"schedule", "checkpoint"} else decl.name)
    return (type(decl).__name__, getattr(decl, "name", None))


def program_with(example):
    """The small program, declarations of the same name replaced by those of the example."""
    text = base()
    reporter = Reporter()
    new = parse(SourceFile("example", example + "\n"), reporter)
    if list(reporter):
        return example
    old = parse(SourceFile("base", text), Reporter())
    replaced = {key(decl) for decl in new.decls}
    for decl in reversed(old.decls):
        if key(decl) in replaced:
            text = text[: decl.span.start] + text[decl.span.end :]
    if new.edition is not None:
        return text.replace("forge 1", example)
    return text + example + "\n"


def found_in(example):
    result = lint_source(SourceFile("t.forge", program_with(example)), ROOT)
    return [d.code for d in result.diagnostics]


WRITTEN = [page for page in pages().values() if page.bad]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.code)
def test_the_bad_example_gives_the_code(page):
    assert page.code in found_in(page.bad)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.code)
def test_the_good_example_does_not(page):
    assert page.good
    assert page.code not in found_in(page.good)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.code)
def test_the_good_example_is_no_other_error(page):
    if page.code[0] != "S":
        result = lint_source(SourceFile("t.forge", program_with(page.good)), ROOT)
        assert [d.message for d in result.diagnostics if d.severity == "error"] == []


def test_pages_without_example_are_those_that_can_have_none():
    from forgedsl.lint.registry import CODES

    missing = {c for c, page in pages().items() if not page.bad and c not in CODES}
    assert missing == WITHOUT_EXAMPLE
