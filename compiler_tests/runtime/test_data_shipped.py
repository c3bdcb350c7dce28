"""The shipped arithmetic data and tokenizer keep what the pipelines and their contract rely on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import forgedsl.pipelines
from forgedsl.pipelines import make_data
from forgedsl_runtime.data import ChatTokenizer
from forgedsl_runtime.rewards import answer_of

ROOT = Path(forgedsl.pipelines.__file__).parent


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ROOT / "data" / name).read_text().splitlines()]


def sum_of(question: str) -> int:
    left, right = question.removesuffix("=").split("+")
    return int(left) + int(right)


def test_files_are_what_the_generator_writes() -> None:
    for name, data in make_data.contents().items():
        assert (ROOT / name).read_bytes() == data, name


def test_problems_are_distinct_right_and_held_out_ones_are_disjoint() -> None:
    train, test = rows("arithmetic.jsonl"), rows("arithmetic_test.jsonl")
    questions = [row["question"] for row in train + test]
    assert len(train) >= 5000
    assert len(test) >= 500
    assert len(set(questions)) == len(questions)
    assert all(
        row["answer"].split("#### ")[1] == str(sum_of(row["question"])) for row in train + test
    )


def test_demonstrations_are_of_mixed_quality_and_show_no_held_out_problem() -> None:
    held_out = {row["question"] for row in rows("arithmetic_test.jsonl")}
    demos = [[m["content"] for m in row["messages"]] for row in rows("arithmetic_demos.jsonl")]
    right = sum(answer_of(answer) == str(sum_of(question)) for question, answer in demos)
    assert not held_out & {question for question, _ in demos}
    assert right / len(demos) == pytest.approx(1 - make_data.WRONG_FRACTION, abs=0.02)


def test_every_demonstration_fits_sixteen_new_tokens() -> None:
    tokenizer = ChatTokenizer.load(str(ROOT / "tokenizers" / "arithmetic"))
    chats = [row["messages"] for row in rows("arithmetic_demos.jsonl")]
    masks = [tokenizer.conversation(chat, "assistant_turns")[1] for chat in chats[:2000]]
    assert max(sum(mask) for mask in masks) <= 16


def test_tags_are_single_tokens_that_stay_visible() -> None:
    tokenizer = ChatTokenizer.load(str(ROOT / "tokenizers" / "arithmetic")).tokenizer
    text = "<think>7+5=12</think><answer>122</answer>"
    tokens = tokenizer(text + "<eos>")["input_ids"]
    assert len(tokens) == 14
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text


def test_the_curriculum_goes_from_easy_to_hard_and_its_held_out_questions_are_others() -> None:
    def numbers(row: dict) -> tuple[bool, tuple[int, ...]]:
        found = tuple(map(int, re.findall(r"\d+", row["question"])))
        assert row["answer"] == f"#### {sum(found)}"
        return row["question"].startswith("What is"), found

    train = [numbers(row) for row in rows("curriculum.jsonl")]
    kinds = ("one_digit", "words", "two_digits")
    held_out = {numbers(row) for kind in kinds for row in rows(f"curriculum_{kind}.jsonl")}
    assert len(held_out) == sum(make_data.NUM_HELD_OUT.values())
    assert not held_out & set(train)
    assert all(is_sum and max(pair) < 10 for is_sum, pair in train[:960])
    assert all(max(pair) < 12 for _, pair in train[:2400])
    assert sum(max(pair) >= 12 for _, pair in train[2400:]) > 600


def test_repository_stays_small() -> None:
    assert sum((ROOT / name).stat().st_size for name in make_data.contents()) < 2_750_000


def test_preferences_differ_in_the_answer_alone() -> None:
    held_out = {row["question"] for row in rows("arithmetic_test.jsonl")}
    pairs = rows("arithmetic_pairs.jsonl")
    assert not held_out & {row["instruction"] for row in pairs}
    for row in pairs:
        right, wrong = answer_of(row["chosen_response"]), answer_of(row["rejected_response"])
        assert int(right) == sum_of(row["instruction"]) != int(wrong)
        assert (
            row["chosen_response"].replace(f">{right}<", f">{wrong}<") == row["rejected_response"]
        )
