"""A file that is being written keeps what is finished: lines of pipelines, damaged one by one."""

from collections import Counter
from pathlib import Path

import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.source import SourceFile
from forgedsl.syntax import parse

PIPELINES = sorted(Path(__file__).parents[2].glob("pipelines/**/*.forge"))
KEPT = 0.98
"""of the declarations of a file, in the mean over its lines"""
MESSAGES = 1.1
"""in the mean over all files: one mistake, one message"""


def _indent(line):
    return line[: len(line) - len(line.lstrip())]


DAMAGES = {
    "a stray .": lambda line: line.rstrip() + ".",
    "a stray (": lambda line: line.rstrip() + " (",
    'a stray "': lambda line: line.rstrip() + ' "',
    "a stray {": lambda line: line.rstrip() + " {",
    "no right side": lambda line: line.split("=")[0] + "=" if "=" in line else line + " =",
    "a word more": lambda line: f"{line}\n{_indent(line)}tra",
    "an address more": lambda line: f"{line}\n{_indent(line)}trainer.",
    "a name more": lambda line: f"{line}\n{_indent(line)}score = ",
}


def read(text):
    """The declarations by kind and name, and how many messages there are."""
    reporter = Reporter()
    tree = parse(SourceFile("t.forge", text), reporter)
    named = [
        (type(d).__name__, getattr(d, "kind", ""), getattr(d, "name", getattr(d, "alias", "")))
        for d in tree.decls
    ]
    return Counter(named), len(list(reporter))


def swept(damage, path, step, first=0):
    """Declarations kept and all of them, messages, number of files: every step-th line damaged."""
    lines = path.read_text().split("\n")
    whole, none = read("\n".join(lines))
    assert none == 0
    lost = messages = number = 0
    for index in range(first, len(lines), step):
        line = lines[index]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        kept, found = read("\n".join([*lines[:index], damage(line), *lines[index + 1 :]]))
        lost += sum((whole - kept).values())
        messages += found
        number += 1
    declared = number * sum(whole.values())
    return declared - lost, declared, messages, number


def check(name, step, first=0):
    """Floors over all pipelines; over each where every line is damaged."""
    kept = declared = messages = number = 0
    for path in PIPELINES:
        counts = swept(DAMAGES[name], path, step, first)
        assert step > 1 or counts[0] >= KEPT * counts[1], path.name
        kept, declared = kept + counts[0], declared + counts[1]
        messages, number = messages + counts[2], number + counts[3]
    assert kept >= KEPT * declared > 0
    assert messages <= MESSAGES * number


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_line_costs_no_more_than_itself(name):
    check(name, 31, first=list(DAMAGES).index(name))


@pytest.mark.deep
@pytest.mark.parametrize("name", DAMAGES)
def test_every_damaged_line_costs_no_more_than_itself(name):
    check(name, 1)


def names(text):
    reporter = Reporter()
    tree = parse(SourceFile("t.forge", text), reporter)
    return [d.name for d in tree.decls], [d.code for d in reporter]


@pytest.mark.parametrize(
    ("text", "kept", "codes"),
    [
        ("param a : int =\nparam b : int = 2\n", ["a", "b"], ["S005"]),
        ("reward r = rl.math(\nparam b : int = 2\n", ["r", "b"], ["S008"]),
        ("service s : titan(m { procs = 1 }\nparam b : int = 2\n", ["s", "b"], ["S008"]),
        ("service s : titan(m) {\n  procs = 1 {\n}\nparam b : int = 2\n", ["s", "b"], ["S001"]),
        ("service s : titan(m) {\n  procs = a.\n}\nparam b : int = 2\n", ["s", "b"], ["S001"]),
        ("loss f(\n  a: [B] f32,\n  b = ,\n) {\n  minimize a\n}\n", ["f"], ["S008"]),
        ("model m { source = hf(\"x", ["m"], ["S004"]),
        ("model m {\n  optimizer {", ["m"], ["S003", "S003"]),
    ],
)  # fmt: skip
def test_what_is_finished_is_kept(text, kept, codes):
    assert names(text) == (kept, codes)


def test_the_placeholder_of_a_missing_value_has_no_width():
    tree = parse(SourceFile("t.forge", "param a : int =\n"), Reporter())
    assert tree.decls[0].default.span.start == tree.decls[0].default.span.end
