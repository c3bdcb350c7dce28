"""`--deep`: Python rewards imported in a subprocess, local files read, this host looked at."""

import json
from dataclasses import replace

import pytest

from forgedsl.families.qwen3 import FAMILY
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


@pytest.mark.parametrize(("model_type", "codes"), [("gpt2", ["P213", "P215"]), ("qwen3", ["P215"])])
def test_the_config_of_a_model_in_the_cache_of_the_hub_is_read(
    deep, tmp_path, monkeypatch, model_type, codes
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    config = FAMILY.write(FAMILY.sizes["0.6B"]) | {"model_type": model_type}
    folder = tmp_path / "models--somebody--x"
    for name, text in (("refs/main", "abc"), ("snapshots/abc/config.json", json.dumps(config))):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text, "utf-8")
    begin, end = BASE.index("random(1)"), BASE.index(", tokenizer")
    text = BASE[:begin] + 'hf("somebody/x", revision = "main")' + BASE[end:]
    assert sorted({code for code, _ in deep(text)}) == codes


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


NESTED = BASE.replace("row.question", "row.messages[-1].content").replace(
    "row.answer", 'row["meta"].answer'
)


def write(folder, rows):
    for name in ("sums.jsonl", "test.jsonl"):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (folder / name).write_text("\n".join(lines), "utf-8")


def nested(answer="2", text="1 + 1"):
    return {"messages": [{"content": text}], "meta": {"answer": answer}}


def test_nested_columns_are_looked_for(deep, tmp_path):
    write(tmp_path, [nested()] * 3)
    assert deep(NESTED) == []
    assert deep(NESTED.replace(".answer", ".anser")) == [("D611", 'row["meta"].anser')]


def test_every_row_is_looked_at_and_the_first_bad_one_named(tmp_path):
    write(tmp_path, [*[nested()] * 150, "", {"messages": [], "meta": {"answer": "2"}}])
    result = lint_source(SourceFile("t.forge", NESTED), tmp_path, deep=Host())
    (found,) = (d for d in result.diagnostics if d.code == "D611")
    assert (found.severity.value, found.message) == (
        "warning",
        "of 151 rows of `sums` 1 cannot be used: the first, line 152, has no "
        "`messages[-1].content`",
    )
    assert "151 rows of sums.jsonl looked at" in result.looked


def test_more_bad_rows_than_the_budget_are_an_error(tmp_path):
    write(tmp_path, [*[nested()] * 100, *["{"] * 6])
    result = lint_source(SourceFile("t.forge", NESTED), tmp_path, deep=Host())
    (found,) = (d for d in result.diagnostics if d.code == "D611")
    assert found.severity.value == "error"


def test_what_one_case_reads_the_rows_of_the_other_need_not_have(deep, tmp_path):
    write(tmp_path, [nested() | {"easy": True}, {"easy": False, "question": "1", **nested()}])
    text = NESTED.replace(
        "prompt = row.messages[-1].content",
        "prompt = row.messages[0].content if row.easy else row.question",
    )
    assert deep(text) == []
