"""The functions and demonstrations that code_sft and the CPU profile of dapo_code rely on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

import forgedsl.pipelines
from forgedsl.pipelines import make_code
from forgedsl.pipelines.rewards.sandbox import run_unit_tests
from forgedsl_runtime.data import ChatTokenizer

ROOT = Path(forgedsl.pipelines.__file__).parent


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "data" / name).read_text().splitlines()]


def demos() -> list[tuple[str, str]]:
    table = pyarrow.parquet.read_table(ROOT / "data" / "code_demos.parquet")
    return [(asked["content"], said["content"]) for asked, said in table["messages"].to_pylist()]


def combination(question: str) -> tuple[str, ...]:
    """What a question combines: `largest of s, plus, squared`, without its numbers."""
    start, *operations = question.removesuffix(".").partition(": ")[2].split(", ")
    return start, *(operation.partition(" ")[0] for operation in operations)


def solution(question: str, seed: int = 1) -> str:
    """A right program for a question, read back from its words."""
    start, *said = question.removesuffix(".").partition(": ")[2].split(", ")
    operations = [operation.partition(" ") for operation in said]
    first, second = ((kind, int(number or 0)) for kind, _, number in operations)
    function = (start, first, second)
    assert make_code.question(function) == question
    lines = make_code.body(function, Random(seed))
    return f"```python\ndef f({make_code.argument(start)}):\n    {lines}\n```"


class Answer:
    def __init__(self, response: str) -> None:
        self.response = response


def test_files_are_what_the_generator_writes() -> None:
    for name, data in make_code.contents().items():
        if not name.endswith(".parquet"):  # whose bytes name the version of the library
            assert (ROOT / name).read_bytes() == data, name
    asked = [row["messages"] for row in make_code.demos()]
    assert demos() == [(question["content"], answer["content"]) for question, answer in asked]  # type: ignore[index]


def test_what_held_out_functions_combine_is_in_no_demonstration_and_no_training_row() -> None:
    held_out = {combination(row["question"]) for row in rows("code_test.jsonl")}
    assert len(held_out) == make_code.NUM_HELD_OUT
    assert not held_out & {combination(question) for question, _ in demos()}
    assert not held_out & {combination(row["question"]) for row in rows("code.jsonl")}


@pytest.mark.parametrize("name", ["code.jsonl", "code_test.jsonl"])
def test_right_programs_pass_in_one_step_and_in_two(name: str) -> None:
    answers = [(solution(row["question"], seed), row) for row in rows(name)[:12] for seed in (0, 1)]
    assert {text.count("\n") for text, _ in answers} == {3, 4}
    for text, row in answers:
        assert run_unit_tests(Answer(text), row["test_cases"]) == 1.0, text


def test_mistakes_fail() -> None:
    rng = Random(5)
    wrong = 0
    for row in rows("code_test.jsonl")[:40]:
        right = solution(row["question"])
        slip = rng.choice(make_code.SLIPS)(right)
        wrong += run_unit_tests(Answer(slip), row["test_cases"]) == 0.0
    assert wrong == 40


def test_a_third_of_the_demonstrations_is_right() -> None:
    said = Counter(
        answer in {solution(question, seed) for seed in (0, 1)} for question, answer in demos()
    )
    share = make_code.WAYS["right"] / sum(make_code.WAYS.values())
    assert said[True] / said.total() == pytest.approx(share, abs=0.02)


def test_every_demonstration_fits_a_row_and_every_program_the_tokens_of_an_answer() -> None:
    tokenizer = ChatTokenizer.load(str(ROOT / "tokenizers" / "code"))
    messages = [row["messages"] for row in make_code.demos()]
    lengths = [len(tokenizer.conversation(chat, "assistant_turns")[0]) for chat in messages]
    assert max(lengths) <= 48
