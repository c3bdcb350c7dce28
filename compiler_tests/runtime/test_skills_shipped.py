"""The desk, the lines and the demonstrations that skills_sft, desk and writing rely on."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

import forgedsl.pipelines
from forgedsl.environment import Step, Task, Turn
from forgedsl.pipelines import make_skills
from forgedsl.pipelines.environments.desk import Desk
from forgedsl.pipelines.rewards.writing import alike, different
from forgedsl.tool_calls import calls_in
from forgedsl_runtime.data import ChatTokenizer

ROOT = Path(forgedsl.pipelines.__file__).parent
TOKENIZER = ROOT / "tokenizers" / "skills"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "data" / name).read_text().splitlines()]


def demos() -> list[list[dict[str, str]]]:
    table = pyarrow.parquet.read_table(ROOT / "data" / "skills_demos.parquet")
    return [row["messages"] for row in table.to_pylist()]


def played(*texts: str, question: str = "#37*13+85=") -> list[Step]:
    desk = Desk()
    desk.reset(Task(text=question), Random(3))
    steps = [Turn(text=text, calls=calls_in(text), number=i) for i, text in enumerate(texts)]
    return [asyncio.run(desk.step(turn)) for turn in steps]


def calling(frame: str, argument: object) -> str:
    return str(make_skills.call(frame, argument)["content"])


def said(step: Step) -> str:
    assert not isinstance(step.observation, str)
    return str(step.observation[0]["content"])


def test_files_are_what_the_generator_writes() -> None:
    for name, data in make_skills.contents().items():
        if not name.endswith(".parquet"):  # whose bytes name the version of the library
            assert (ROOT / name).read_bytes() == data, name
    assert demos() == [row["messages"] for row in make_skills.demos()]


def test_demonstrations_show_no_held_out_order_and_three_in_ten_are_right() -> None:
    held_out = {row["question"] for row in rows("desk_test.jsonl")}
    chats = [chat for chat in demos() if chat[0]["content"].startswith("#")]
    assert not held_out & {chat[0]["content"] for chat in chats}
    assert not held_out & {row["question"] for row in rows("desk.jsonl")}
    right = 0
    for chat in chats:
        item, count, extra = map(int, re.findall(r"\d+", chat[0]["content"]))
        price = chat[2]["content"] if len(chat) == 6 else ""
        told = price and f'"{price}*{count}+{extra}"' in chat[3]["content"]
        right += bool(told and f'"{item}"' in chat[1]["content"])
    share = make_skills.WAYS["right"] / sum(make_skills.WAYS.values())
    assert right / len(chats) == pytest.approx(share, abs=0.03)


def test_grades_are_counts_of_words_with_the_letter() -> None:
    asked = [chat for chat in demos() if chat[0]["content"].startswith("0 to 4, ")]
    for question, answer in asked:
        prompt, line = question["content"].removeprefix("0 to 4, ").removesuffix("=").split(": ")
        assert 4 * alike(prompt + ":", line) == int(answer["content"])
    counts = Counter(answer["content"] for _, answer in asked)
    assert sorted(counts) == ["0", "1", "2", "3", "4"]


def test_every_turn_fits_its_tokens() -> None:
    tokenizer = ChatTokenizer.load(str(TOKENIZER))
    lengths = [len(tokenizer.conversation(chat, "assistant_turns")[0]) for chat in demos()[:2000]]
    assert max(lengths) <= 64


def test_a_price_is_looked_up_a_sum_calculated_and_the_answer_is_right() -> None:
    (looked,) = played(calling(make_skills.LOOKUP, 37))
    price = int(said(looked))
    due = price * 13 + 85
    steps = played(
        calling(make_skills.LOOKUP, 37),
        calling(make_skills.CALCULATE, f"{price}*13+85"),
        f"<answer>{due}</answer>",
    )
    assert said(steps[1]) == str(due)
    assert [step.rewards for step in steps] == [
        {"lookups": 1.0, "sums": 0.0}, {"lookups": 0.0, "sums": 1.0}, {"right": 1.0},
    ]  # fmt: skip
    assert [step.done for step in steps] == [False, False, True]


@pytest.mark.parametrize("text", ["<answer>1</answer>", "<answer>", "", "<answer>x</answer>"])
def test_anything_else_is_wrong(text: str) -> None:
    (step,) = played(text)
    assert (step.rewards, step.done) == ({"right": 0.0}, True)


@pytest.mark.parametrize(
    "expression", ["1+", "2**9", "__import__('os')", "1/2", "x", "1.5*2", "(" * 40, "\0"]
)
def test_what_is_no_sum_is_an_error_that_the_policy_reads(expression: str) -> None:
    call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
    (step,) = played(f"<tool_call>{call}</tool_call>")
    assert said(step) == "error"


@pytest.mark.parametrize("item", ["100", "", "-1", "x", "\u00b2", 7.5])
def test_an_item_that_is_not_there_has_no_price(item: object) -> None:
    call = json.dumps({"name": "lookup", "arguments": {"item": item}})
    (step,) = played(f"<tool_call>{call}</tool_call>")
    assert said(step) == "unknown"


def test_four_words_are_read_and_repeats_are_told_apart() -> None:
    line = "sea sea sun map salt."
    assert (alike("line s:", line), different("line s:", line)) == (0.75, 0.75)
