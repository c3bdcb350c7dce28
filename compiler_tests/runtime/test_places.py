"""From an error in generated code to the .forge line it comes from."""

from __future__ import annotations

import pytest

from forgedsl_runtime.modules import load_module
from forgedsl_runtime.tracebacks import described, places_of

MODULE = '''"""Generated."""


def inner(x):
    """A statement with its place behind it."""
    return 1 / x  # own.forge:7:3


def outer(x):
    # own.forge:12:18
    return inner(
        x,
    )


def silent(x):
    return 1 / x
'''


@pytest.fixture
def module():
    return load_module("places", MODULE)


def raised(function, *args):
    with pytest.raises(ZeroDivisionError) as caught:
        function(*args)
    return caught.value


def test_the_place_behind_a_statement(module):
    assert described(raised(module.inner, 0)) == (
        "ZeroDivisionError: division by zero (at own.forge:7:3)"
    )


def test_the_places_of_all_frames_innermost_first(module):
    assert places_of(raised(module.outer, 0)) == ("own.forge:7:3", "own.forge:12:18")


def test_code_without_places_says_none(module):
    assert described(raised(module.silent, 0)) == "ZeroDivisionError: division by zero"


def test_a_failing_column_names_its_line(make_job, tmp_path):
    from forgedsl.errors import RunError
    from forgedsl.lower import job as spec
    from forgedsl.lower.paths import digest
    from forgedsl_runtime.data import open_dataset

    (tmp_path / "rows.jsonl").write_text('{"question": "1+1="}\n')
    text = "def column(row):\n    return row.qestion  # own.forge:8:12\n"
    sha256 = digest(tmp_path / "rows.jsonl")
    source = spec.FileSource(kind="jsonl", path="rows.jsonl", sha256=sha256)
    dataset = spec.Dataset(source=source, tokenizer="policy", prompt="column", shuffle=None)
    job = make_job(datasets={"rows": dataset}, program=text)
    program = load_module("program", text)
    reader = open_dataset(job, "rows", program=program, job_dir=tmp_path, run_dir=tmp_path)
    with pytest.raises(
        RunError, match=r"rows.jsonl:1: .*its columns are question.* \(at own.forge:8:12"
    ):
        reader.next_prompt()


def test_of_an_error_of_pages_the_beginning_is_shown() -> None:
    said = described(ValueError("boom " * 400_000))
    assert said.endswith("boom ... (2,000,000 characters)")
    assert len(said) < 1000
