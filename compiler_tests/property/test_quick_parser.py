"""quick.py reads what Lark reads, builds the same tree, and gives up on everything else."""

import os
import random
from pathlib import Path

import pytest
from forge_trees import files
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.diagnostics import Reporter
from forgedsl.format import print_file
from forgedsl.source import SourceFile
from forgedsl.syntax import fast_parser, recovering_parser
from forgedsl.syntax.tables import grammar_text

DEEP = os.environ.get("FORGE_DEEP") == "1"
ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "pipelines").rglob("*.forge"))
TEXTS = {path.stem: path.read_text("utf-8") for path in SHIPPED}
PIECES = (
    *"()[]{},=:+-*/%<>.#\"'\\\n\t;&", "->", "..", "**", "==", "<=", "param ", "import ", "r\"x\"",
    '"""', "1.5", "10 min", "3GiB", "1e5", "diff ", "if ", "else ", "not ", "\r\n", "none", "x",
)  # fmt: skip


def read_both(text):
    """quick's tree or None, and Lark's tree if it has no mistake."""
    reporter = Reporter()
    tree = recovering_parser.parse(SourceFile("p", text), reporter)
    return fast_parser.parse(text, "p", "start"), None if list(reporter) else tree


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_are_read_without_lark(path):
    ours, theirs = read_both(path.read_text("utf-8"))
    assert ours is not None
    assert ours == theirs


@settings(max_examples=1000 if DEEP else 60, deadline=None)
@given(files)
def test_printed_trees(file):
    ours, theirs = read_both(print_file(file))
    assert ours is not None
    assert ours == theirs


@settings(max_examples=10_000 if DEEP else 300, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 2**32))
def test_mutated_files(name, seed):
    rng = random.Random(seed)
    text = TEXTS[name]
    start = rng.randrange(len(text))
    text = text[start : start + rng.randint(20, 600)]
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randint(0, 4) :]
    ours, theirs = read_both(text)
    assert ours is None or ours == theirs


@settings(max_examples=10_000 if DEEP else 200, deadline=None)
@given(st.lists(st.sampled_from((*PIECES, "a", "b = ", "{ ", "}", "\n", " ")), max_size=12))
def test_pieces(pieces):
    ours, theirs = read_both("".join(pieces))
    assert ours is None or ours == theirs


@pytest.mark.parametrize(
    "text",
    [
        "f(a)==b",
        "a == b",
        "not a",
        "a if b else c",
        "-a ** -b",
        'r"\\d"',
        "[1, 2,]",
        "10min",
        "1_0",
    ],
)
def test_values(text):
    assert fast_parser.parse(text, "p", "value") == recovering_parser.parse_value(
        SourceFile("p", text), Reporter()
    )


@pytest.mark.parametrize(
    "text", ["(" * 65 + "a" + ")" * 65, "a" + " + a" * 500, "1e999", '"\\q"', "a b"]
)
def test_what_needs_care_is_left_to_lark(text):
    assert fast_parser.parse(text, "p", "value") is None


def test_tables_come_from_the_cache(tmp_path, monkeypatch):
    from forgedsl.syntax import tables

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh = tables.load.__wrapped__()
    assert len(list(tmp_path.rglob("tables-*.marshal"))) == 1
    assert tables.load.__wrapped__() == fresh
    assert "block_decl" in grammar_text()
