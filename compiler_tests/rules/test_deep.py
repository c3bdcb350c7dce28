"""`--deep`: Python rewards imported in a subprocess, local files read, this host looked at."""

import json
from dataclasses import replace

import pytest

from forgedsl.hir.context import Host
from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

from .conftest import BASE

ROWS = [{"question": "1 + 1", "answer": "2"}]
TOKENIZER = {"added_tokens_decoder": {"7": {"content": "<end>"}, "9": {"content": "<stop>"}}}
PYTHON = BASE.replace('import "std/rl" as rl', 'import python "p.py" as p')
PYTHON = PYTHON.replace("reward correct = rl.exact", "reward correct = p.score")


@pytest.fixture
def deep(tmp_path):
    """Lint deeply in a folder with the data of BASE; (code, text at its place)."""
    for name in ("sums.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in ROWS), "utf-8")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps(TOKENIZER), "utf-8")

    def run(text, host=None):
        source = SourceFile("t.forge", text)
        result = lint_source(source, tmp_path, deep=host or Host())
        return [(d.code, text[d.span.start : d.span.end]) for d in result.diagnostics]

    return run


def test_a_program_with_its_files_is_clean(deep):
    assert deep(BASE) == []


def test_a_missing_file_is_found(deep):
    found = deep(BASE.replace('"sums.jsonl"', '"other.jsonl"'))
    assert found == [("P210", 'jsonl("other.jsonl")')]


def test_a_missing_column_is_found(deep):
    assert deep(BASE.replace("row.question", "row.quest")) == [("D611", "row.quest")]


def test_a_python_reward_is_imported_in_a_subprocess(deep, tmp_path):
    (tmp_path / "p.py").write_text(
        "import nowhere_to_be_found\n\n\ndef score(prompt, response, target):\n    return 1.0\n"
    )
    assert deep(PYTHON) == [("X804", "correct")]
    (tmp_path / "p.py").write_text("def score(prompt, response, target):\n    return 1.0\n")


def test_a_reward_that_imports_is_silent(deep, tmp_path):
    (tmp_path / "p.py").write_text("def score(prompt, response, target):\n    return 1.0\n")
    assert deep(PYTHON) == []


def test_end_tokens_are_those_of_the_model(deep, tmp_path):
    (tmp_path / "t" / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    text = BASE.replace("source = random(1), arch", 'source = local("t"), arch')
    text = text.replace("max_tokens = 16 }", 'max_tokens = 16, stop = ["<end>"] }')
    assert deep(text) == [("D607", '["<end>"]')]


def test_the_plan_is_checked_on_this_host(deep):
    text = BASE.replace("titan(policy) { optimizer", "titan(policy) { gpus = 1, optimizer")
    bare = replace(Host(), gpus=0, gpu=None)
    assert deep(text) == []
    assert [code for code, _ in deep(text, bare)] == ["P203"]
