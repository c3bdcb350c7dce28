"""fmt: what is printed parses to the same tree, comments stay, and white space does not matter."""

import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from forge_trees import expressions, files, without_spans
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.diagnostics import Reporter
from forgedsl.format import format_source, print_file
from forgedsl.format.columns import place_notes
from forgedsl.source import NO_SPAN, SourceFile
from forgedsl.syntax import ast, parse
from forgedsl.syntax.trivia import comments

DEEP = os.environ.get("FORGE_DEEP") == "1"
PIPELINES = Path(__file__).parents[2] / "pipelines"
TEXTS = {p.stem: p.read_text(encoding="utf-8") for p in sorted(PIPELINES.rglob("*.forge"))}
TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"|#[^\n]*'
    r"|\d[\d_]*(?:\.\d+)?[eE][+-]?\d+|\w[\w.]*"
    r"|->|\.\.|\*\*|[=!<>]=|[^\s\w]",
    re.DOTALL,
)
FUNCTION = re.compile(r"^(?:fn|loss|reward|advantage|filter)\s+\w+\s*$")


def parsed(text):
    reporter = Reporter()
    file = parse(SourceFile("p", text), reporter)
    assert [d.message for d in reporter] == [], text
    return file


def fmt(text):
    return format_source(SourceFile("p", text), parsed(text))


class Shaker:
    """Rewrites the white space of a text in ways that do not carry layout: blanks, indentation,
    blank lines beside blank lines, line ends inside brackets of expressions."""

    def __init__(self, rng):
        self.rng = rng
        self.stack = []  # open brackets; "f" are the parentheses of a function's fields

    def blanks(self, least):
        return "".join(self.rng.choice((" ", "\t")) for _ in range(self.rng.randint(least, 4)))

    def gap(self, gap, before, after):
        if after.startswith("#"):
            lines = gap.split("\n")
            return self.lines(len(lines) - 1) if len(lines) > 1 else self.blanks(1)
        if "\n" in gap and (before.startswith("#") or not self.in_expression()):
            return self.lines(gap.count("\n"))
        if self.in_expression() and self.rng.random() < 0.1:
            return self.lines(1)
        if gap:
            return self.blanks(1)
        return self.blanks(0) if {before, after} & set("()[]{},=:+*/<>") else ""

    def in_expression(self):
        return bool(self.stack) and self.stack[-1] in "(["

    def lines(self, number):
        if number > 1:
            number = self.rng.randint(2, 4)
        return "".join(f"{self.blanks(0)}\n" for _ in range(number)) + self.blanks(0)

    def __call__(self, text):
        out, at, before = [], 0, ""
        for match in TOKEN.finditer(text):
            token = match[0]
            gap = text[at : match.start()]
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            out.append(self.gap(gap, before, token) if at else gap)
            if token in "([{":
                is_function = not self.stack and token == "(" and FUNCTION.match(line)
                self.stack.append("f" if is_function else token)
            elif token in ")]}":
                self.stack.pop()
            out.append(token)
            at, before = match.end(), token
        return "".join(out) + text[at:]


@pytest.mark.parametrize("path", sorted(PIPELINES.rglob("*.forge")), ids=lambda p: p.name)
def test_shipped_files_are_fixed_points(path):
    text = path.read_text(encoding="utf-8")
    assert fmt(text) == text


@settings(max_examples=1000 if DEEP else 20, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 2**32))
def test_white_space_does_not_matter(name, seed):
    text = TEXTS[name]
    assert fmt(Shaker(random.Random(seed))(text)) == fmt(text)


@settings(max_examples=1500 if DEEP else 100, deadline=None)
@given(files)
def test_parsing_what_was_printed_gives_the_tree_back(file):
    assert without_spans(parsed(print_file(file))) == without_spans(file)


@settings(max_examples=1500 if DEEP else 100, deadline=None)
@given(files)
def test_printing_is_idempotent(file):
    once = print_file(file)
    assert fmt(once) == once


@settings(max_examples=1500 if DEEP else 150, deadline=None)
@given(expressions)
def test_expressions_keep_their_meaning(expression):
    name = ast.Path(parts=("x",), span=NO_SPAN)
    assign = ast.Assign(path=name, value=expression, span=NO_SPAN)
    block = ast.Block(items=(assign,), span=NO_SPAN)
    flow = ast.BlockDecl(
        kind="flow", kind_span=NO_SPAN, name="train", name_span=NO_SPAN, ctor=None, when=None,
        block=block, span=NO_SPAN,
    )  # fmt: skip
    text = print_file(ast.File(edition=None, decls=(flow,), span=NO_SPAN))
    assert without_spans(parsed(text).decls[0].block.items[0].value) == without_spans(expression)


def commented(text, rng):
    """The text with comments put at line ends and inside brackets."""
    out, at, depth = [], 0, 0
    for number, match in enumerate(TOKEN.finditer(text)):
        gap = text[at : match.start()]
        if depth and rng.random() < 0.05:
            gap += f" # inside {number}\n"
        elif "\n" in gap and rng.random() < 0.2:
            mark = rng.choice(("#", "##"))
            gap = gap.replace("\n", f" # behind {number}\n", 1) + f"{mark} above {number}\n"
        token = match[0]
        depth += (token in "([") - (token in ")]")
        out += [gap, token]
        at = match.end()
    return "".join(out) + text[at:]


@settings(max_examples=1000 if DEEP else 20, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 2**32))
def test_comments_anywhere_are_kept(name, seed):
    bare = re.sub(r"[ \t]*#[^\n\"]*$", "", TEXTS[name], flags=re.M)
    written = commented(bare, random.Random(seed))
    once = fmt(written)
    assert fmt(once) == once
    assert count_comments(once) == count_comments(written)
    assert without_spans(parsed(once)) == without_spans(parsed(written))


def count_comments(text):
    return Counter(c.text.strip("# ") for c in comments(SourceFile("p", text)))


def test_notes_go_to_one_column():
    text = "a = 1\0# one\nbb = 2\0# two\nc = 3"
    first, second, third = place_notes(text).split("\n")
    assert (first.index("#"), second.index("#"), third) == (49, 49, "c = 3")
