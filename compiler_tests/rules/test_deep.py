"""`--deep`: rewards loaded and rows read as a run does, this host looked at."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from forgedsl.cli import data_checks
from forgedsl.cli.data_checks import InputChecker
from forgedsl.families.qwen3 import FAMILY
from forgedsl.lint.engine import Deep, lint_source
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile

from .conftest import BASE

TOKENIZER_FOLDER = Path(__file__).parents[2] / "pipelines" / "tokenizers" / "arithmetic"
ROWS = [{"question": "1 + 1", "answer": "2"}] * 8
SHIPPED = BASE.replace('local("t")', 'local("forgedsl:tokenizers/arithmetic")')
END_TOKENS = {"added_tokens_decoder": {"7": {"content": "<end>"}, "8": {"content": "<call>"}}}
PYTHON = SHIPPED.replace('import "std/rl" as rl', 'import python "p.py" as p')
PYTHON = PYTHON.replace("reward correct = rl.exact", "reward correct = p.score")


@pytest.fixture
def deep(tmp_path):
    """Lint deeply in a folder with the data of BASE; (code, text at its place)."""
    for name in ("sums.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in ROWS), "utf-8")
    shutil.copytree(TOKENIZER_FOLDER, tmp_path / "t")

    def run(text, host=None):
        found = look(text, tmp_path, host).diagnostics
        return [(d.code, text[d.span.start : d.span.end]) for d in found]

    return run


def look(text, folder, host=None):
    outside = Deep(host=host or Host(), outside=InputChecker())
    return lint_source(SourceFile("t.forge", text), folder, deep=outside)


def called(text, folder):
    """Findings of --deep with its calls of rewards, as the command makes them."""
    checker = InputChecker()
    outside = Deep(host=Host(), outside=checker, calls=checker.calls)
    return lint_source(SourceFile("t.forge", text), folder, deep=outside).diagnostics


def test_a_program_with_its_files_is_clean(deep):
    assert deep(BASE) == []


def test_a_missing_file_is_found(deep):
    found = deep(BASE.replace('"sums.jsonl"', '"other.jsonl"'))
    assert found == [("P210", 'jsonl("other.jsonl")')]


def test_a_missing_column_is_found(deep):
    assert deep(BASE.replace("row.question", "row.quest")) == [("D665", "row.quest")]
    nested = BASE.replace("row.question", "row.question.text")
    assert deep(nested) == [("D611", "row.question.text")]


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


def test_prompts_of_an_evaluation_are_looked_for_among_those_of_the_training(deep, tmp_path):
    rows = [json.dumps({"question": f"{i} + 1", "answer": str(i + 1)}) for i in range(60)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows[:40]), "utf-8")
    (tmp_path / "test.jsonl").write_text("\n".join(rows[40:]), "utf-8")
    assert deep(SHIPPED) == []
    (tmp_path / "test.jsonl").write_text("\n".join(rows[38:]), "utf-8")
    (found,) = look(SHIPPED, tmp_path).diagnostics
    assert found.message == "2 of 22 prompts of `held_out` are trained on as `sums`"


@pytest.mark.full
def test_problems_that_another_seed_makes_again_are_an_information():
    pytest.importorskip("reasoning_gym")
    path = Path(__file__).parents[2] / "pipelines/chain_sum.forge"
    (found,) = look(path.read_text("utf-8"), path.parent).diagnostics
    assert (found.code, str(found.severity)) == ("D604", "info")
    few = path.read_text("utf-8").replace("max_digits = 2", "max_digits = 1")
    few = few.replace("min_digits = 2", "min_digits = 1")
    (found,) = (d for d in look(few, path.parent).diagnostics if d.code != "D615")
    assert (found.code, str(found.severity)) == ("D604", "warning")


def test_a_python_reward_is_imported_in_a_subprocess(deep, tmp_path):
    (tmp_path / "p.py").write_text(
        "import nowhere_to_be_found\n\n\ndef score(prompt, response, target):\n"
        "    return float(response == target)\n"
    )
    assert deep(PYTHON) == [("X804", "correct")]
    (tmp_path / "p.py").write_text(
        "def score(prompt, response, target):\n    return float(response == target)\n"
    )


@pytest.mark.full
def test_a_reward_that_hangs_while_it_is_imported_is_waited_for_a_short_time(
    deep, tmp_path, monkeypatch
):
    monkeypatch.setattr(data_checks, "SECONDS", 16.0)
    text = (
        "import time\ntime.sleep(600)\ndef score(prompt, response, target):\n"
        "    return float(response == target)\n"
    )
    (tmp_path / "p.py").write_text(text)
    (found,) = (d for d in look(PYTHON, tmp_path).diagnostics if d.code == "X804")
    said = "importing p.py:2 did not finish and was interrupted after 11 s (a run waits 540"
    assert said in found.message


def test_a_variable_that_only_the_run_has_is_no_error(deep, tmp_path):
    score = "def score(prompt, response, target):\n    return float(response == target)\n"
    (tmp_path / "keys.py").write_text('import os\n\nKEY = os.environ["NOT_SET_HERE"]\n')
    (tmp_path / "p.py").write_text(f"import keys\n\n\n{score}")
    assert deep(PYTHON) == []
    assert "NOT_SET_HERE is not set here" in "".join(look(PYTHON, tmp_path).data_reports)
    (tmp_path / "keys.py").write_text('KEY = {}["NOT_SET_HERE"]\n')
    assert deep(PYTHON) == [("X804", "correct")]


def test_a_reward_that_imports_is_silent(deep, tmp_path):
    (tmp_path / "p.py").write_text(
        "def score(prompt, response, target):\n    return float(response == target)\n"
    )
    assert deep(PYTHON) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def score(response, target):\n    return target['a'] == response\n",
         "reward correct (score of p.py, t.forge:20:8) fails for sums.jsonl:5, whose target is "
         "text: '2': TypeError: string indices must be integers, not 'str' (p.py:2)"),
        ("def score(response, target):\n    return float(int(response) == int(target))\n", ""),
        ("import requests\ndef score(response, target):\n    return requests.get(target)\n", ""),
    ],
    ids=["another target", "fails for nonsense only", "acts on the world"],
)  # fmt: skip
def test_a_reward_is_called_once_on_a_row(deep, tmp_path, source, found):
    (tmp_path / "p.py").write_text(source)
    result = look(PYTHON, tmp_path)
    assert "".join(d.message for d in result.diagnostics if d.code == "X805") == found


def test_a_reward_that_takes_nothing_but_a_number_is_told(deep, tmp_path):
    """The trial call passes: the target alone is a number."""
    source = "def score(response, target):\n    return float(int(response) == int(target))\n"
    (tmp_path / "p.py").write_text(source)
    (found,) = called(PYTHON, tmp_path)
    told = "`correct` fails for an empty answer: ValueError: invalid literal for int() with base 10"
    assert (found.code, found.message.startswith(told)) == ("X853", True)
    assert "also for an answer without tags" in found.notes
    caught = "    except ValueError:\n        raise ValueError('no number')\n"
    raised = source.replace("    return", "    try:\n        return") + caught
    (tmp_path / "p.py").write_text(raised)
    assert called(PYTHON, tmp_path) == ()


@pytest.mark.parametrize("on_error", ["drop", "0.0"])
def test_a_reward_that_returns_a_text_for_some_answers_is_told(deep, tmp_path, on_error):
    source = (
        "WORDS = {True: 1.0, False: 'wrong'}\n\n\n"
        "def score(response, target):\n    return WORDS[response == target]\n"
    )
    (tmp_path / "p.py").write_text(source)
    text = PYTHON.replace("correct = p.score", f"correct = p.score {{ on_error = {on_error} }}")
    (found,) = called(text, tmp_path)
    assert found.code == "X853"
    assert found.message.endswith("returned str 'wrong', expected a number")
    assert found.help == "return a number on every path"


def test_a_reward_in_the_language_is_called_too(deep):
    body = "reward correct(r: Rollout) -> f32 = 1.0 if r.target.answer == r.response else 0.0"
    begin = BASE.index("reward correct = rl.exact")
    end = BASE.index("\n", begin)
    assert ("X805", "correct") in deep(SHIPPED.replace(BASE[begin:end], body))


def test_end_tokens_are_those_of_the_model(deep, tmp_path):
    (tmp_path / "t" / "generation_config.json").write_text('{"eos_token_id": [7]}')
    (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps(END_TOKENS))
    text = BASE.replace("source = random(1), arch", 'source = local("t"), arch')
    text = text.replace("max_tokens = 16 }", 'max_tokens = 16, stop = ["<end>", "<call>"] }')
    assert [message for code, message in deep(text) if code == "D607"] == ['["<end>", "<call>"]']


def test_the_plan_is_checked_on_this_host(deep):
    text = BASE.replace("titan(policy) { optimizer", "titan(policy) { gpus = 1, optimizer")
    bare = replace(Host(), gpus=0, gpu=None)
    assert deep(text) == []
    assert [code for code, _ in deep(text, bare)] == ["P203"]


NESTED = SHIPPED.replace("row.question", "row.messages[-1].content").replace(
    "row.answer", 'row["meta"].answer'
)


def write(folder, rows):
    for name in ("sums.jsonl", "test.jsonl"):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (folder / name).write_text("\n".join(lines), "utf-8")


def nested(answer="2", text="1 + 1"):
    return {"messages": [{"content": text}], "meta": {"answer": answer}}


def test_nested_columns_are_looked_for(deep, tmp_path):
    write(tmp_path, [nested()] * 8)
    assert deep(NESTED) == []
    assert deep(NESTED.replace(".answer", ".anser")) == [("D611", 'row["meta"].anser')]


def test_every_row_is_looked_at_and_the_first_bad_one_named(tmp_path):
    write(tmp_path, [*[nested()] * 150, "", {"messages": [], "meta": {"answer": "2"}}])
    result = look(NESTED, tmp_path)
    found = next(d for d in result.diagnostics if d.code == "D611")
    assert (found.severity.value, found.message, found.notes) == (
        "warning",
        "dataset sums: 1 of 151 rows left out (bad row: 1)",
        ("sums.jsonl:152: `messages` has no [-1]: its length is 0 (at t.forge:11:12)",),
    )
    assert "checked 151 rows of sums" in result.data_reports


def test_more_bad_rows_than_the_budget_are_an_error(tmp_path):
    write(tmp_path, [*[nested()] * 100, *["{"] * 6])
    found = next(d for d in look(NESTED, tmp_path).diagnostics if d.code == "D611")
    assert found.severity.value == "error"
    assert "more than max_bad_rows = 0.05 allows" in found.message


def test_what_one_case_reads_the_rows_of_the_other_need_not_have(deep, tmp_path):
    write(tmp_path, [nested() | {"easy": True}, {"easy": False, "question": "1", **nested()}] * 4)
    text = NESTED.replace(
        "prompt = row.messages[-1].content",
        "prompt = row.messages[0].content if row.easy else row.question",
    )
    assert deep(text) == []


def test_sources_with_other_columns_are_named_and_read_by_first(deep, tmp_path):
    write(tmp_path, ROWS)
    (tmp_path / "other.jsonl").write_text('{"problem": "1+1=", "answer": "2"}\n' * 8, "utf-8")
    text = SHIPPED.replace(
        'jsonl("sums.jsonl")',
        'mixture([jsonl("sums.jsonl"), jsonl("other.jsonl")], weights = [1, 1])',
        1,
    )
    (found,) = look(text, tmp_path).diagnostics
    assert (found.code, found.message) == ("D665", "rows of other.jsonl have no column `question`")
    nested = text.replace("row.question", 'row["question"]').replace("jsonl", "parquet")
    for name in ("sums", "other"):
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").open()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    found = next(d for d in look(nested, tmp_path).diagnostics if d.code == "D611")
    assert found.notes[-1] == (
        "the sources have different columns: sums.parquet has answer, question; other.parquet has "
        "answer, problem; `first(row.NAME, row.OTHER)` reads whichever of the two a row has"
    )
    assert deep(text.replace("row.question", "first(row.question, row.problem)")) == []


def test_fewer_rows_than_a_step_draws_are_said(tmp_path):
    write(tmp_path, ROWS[:3])
    (found,) = look(SHIPPED, tmp_path).diagnostics
    assert (found.code, found.severity.value, found.message) == (
        "D612",
        "warning",
        (
            "dataset sums: a step draws 8 rows, but only 3 are usable, so some rows occur several "
            "times in one step"
        ),
    )


def test_parquet_is_read_too(tmp_path):
    table = pyarrow.Table.from_pylist([{"question": "1+1", "answer": "2"}, {"question": " "}])
    pyarrow.parquet.write_table(table, tmp_path / "sums.parquet")
    write(tmp_path, ROWS)
    result = look(SHIPPED.replace('jsonl("sums.jsonl")', 'parquet("sums.parquet")'), tmp_path)
    (found,) = (d for d in result.diagnostics if d.code == "D611")
    assert found.notes == ("sums.parquet row 1: the prompt is empty",)


def test_rows_that_are_too_long_are_said(tmp_path):
    write(tmp_path, [*ROWS, {"question": "1+" * 40, "answer": "2"}])
    found = next(d for d in look(SHIPPED, tmp_path).diagnostics if d.code == "D611")
    assert (found.severity.value, found.notes) == (
        "info",
        ("sums.jsonl:9: the prompt has 80 tokens, more than max_prompt_tokens = 48",),
    )


def test_what_is_not_here_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    write(tmp_path, ROWS[:1])
    text = SHIPPED.replace('local("forgedsl:tokenizers/arithmetic")', 'hf("some/tokenizer")')
    text = text.replace('jsonl("sums.jsonl")', 'hf("some/rows")')
    assert look(text, tmp_path).data_reports == (
        (
            'rows of sums not checked: hf("some/rows") is not in the local cache of the Hugging '
            "Face hub"
        ),
        "checked 1 row of sums.held_out",
        "lengths of sums.held_out not checked: the tokenizer of policy: hf("
        '"some/tokenizer") is not in the local cache of the Hugging Face hub',
    )


def test_a_parameter_that_no_row_has_as_a_column_is_found(deep, tmp_path):
    (tmp_path / "p.py").write_text(
        "def score(response, target, levle):\n    return levle * (response == target)\n"
    )
    assert deep(PYTHON) == [("X869", "correct")]


def test_a_reward_that_cannot_be_made_is_named_as_in_the_file(tmp_path):
    write(tmp_path, ROWS)
    (tmp_path / "p.py").write_text(
        "class Judge:\n    def __init__(self): raise OSError('no weights')\n"
        "    def __call__(self, response): return response == 'x'\n"
    )
    found = look(PYTHON.replace("p.score", "p.Judge"), tmp_path).diagnostics
    assert [d.message for d in found] == [
        "reward correct (Judge of p.py, t.forge:20:8): Judge() failed: OSError: no weights"
    ]


def test_if_most_rows_are_too_long_it_is_a_warning_with_a_remedy(tmp_path):
    write(tmp_path, [*ROWS, *[{"question": "1+" * 40, "answer": "2"}] * 9])
    found = next(d for d in look(SHIPPED, tmp_path).diagnostics if d.code == "D611")
    assert found.severity.value == "warning"
    assert "`max_prompt_tokens`" in found.help


def test_rows_that_are_all_too_long_have_a_remedy(tmp_path):
    write(tmp_path, [{"question": "1+" * 40, "answer": "2"}] * 9)
    found = next(d for d in look(SHIPPED, tmp_path).diagnostics if d.code == "D611")
    assert found.severity.value == "error"
    assert "`on_long = truncate`" in found.help


def test_rows_that_differ_in_spaces_alone_are_repeats(tmp_path):
    rows = [{"question": f"{i}+1", "answer": "2"} for i in range(20)]
    spaced = [row | {"question": " + ".join(row["question"].split("+"))} for row in rows[:4]]
    wide = [row | {"question": f"  {row['question']} "} for row in rows[:4]]
    write(tmp_path, [*rows, *spaced, *wide])
    found = next(d for d in look(SHIPPED, tmp_path).diagnostics if d.code == "D615")
    assert found.message == (
        "4 of 28 rows of `sums` repeat an earlier row, 4 of them in other case or spaces"
    )
