"""Bad rows: left out, counted, named with file and line, and too many of them end the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forgedsl.errors import GuardError, RunError
from forgedsl.lower import job as spec
from forgedsl.lower.paths import digest
from forgedsl.rows import DroppedRow, messages, sides
from forgedsl_runtime.data import ChatTokenizer, DatasetReader, open_dataset
from forgedsl_runtime.data.reader import Wanted
from forgedsl_runtime.modules import load_module

PROGRAM = """
from forgedsl_runtime.program import after, chat
def ask(row):
    return chat(None, row.question)
def raw(row):
    return row.question
def target(row):
    return after(row.answer, "#### ")
def messages(row):
    return row.messages
"""
GOOD = {"question": "1+1=", "answer": "2"}


@pytest.fixture
def opened(make_job: Any, tmp_path: Path) -> Any:
    """Open a file of lines (text, or rows) as a dataset; its events go into a list."""

    def open_(*lines: Any, **more: Any) -> tuple[DatasetReader, list[dict[str, Any]]]:
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path = tmp_path / "inputs" / "rows.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(texts) + "\n")
        source = spec.FileSource(kind="jsonl", path="inputs/rows.jsonl", sha256=digest(path))
        columns = {"prompt": "ask", "target": "target", "shuffle": None} | more
        dataset = spec.Dataset(source=source, tokenizer="policy", **columns)
        job = make_job(datasets={"rows": dataset}, program=PROGRAM)
        program = load_module("program", PROGRAM)
        data = open_dataset(job, "rows", program=program, job_dir=tmp_path, run_dir=tmp_path)
        events: list[dict[str, Any]] = []
        data.drops.tell = lambda kind, **fields: events.append({"kind": kind, **fields})
        return data, events

    return open_


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{}", "the row has no column `question`; its columns are none"),
        ('{"question": "1+', "not a line of JSON"),
        ("[1]", "a row must be a JSON object"),
        ({"question": None, "answer": "2"}, "the user's turn of `chat` is null"),
        ({"question": " ", "answer": "2"}, "the prompt is empty"),
        ({"question": "1+1="}, "the row has no column `answer`; its columns are question"),
        ({"question": "1+1=", "answer": None}, "`after` reads text, but this is null"),
    ],
)
def test_a_bad_row_is_left_out_and_named(opened: Any, bad: Any, why: str) -> None:
    data, events = opened(GOOD, "", bad, GOOD)
    assert [data.next_prompt().cursor for _ in range(3)] == [1, 3, 4]
    (dropped,) = (event for event in events if event["kind"] == "row.dropped")
    assert (dropped["row"], dropped["reason"]) == ("rows.jsonl:3", "bad row")
    assert dropped["message"].startswith(why)


def turns(**message: Any) -> dict[str, Any]:
    return {"question": [message]}


@pytest.mark.parametrize(
    ("row", "columns", "why"),
    [
        ({"question": 5}, {"prompt": "raw"}, ("`prompt` is a number, neither text nor a list of "
                                              "messages")),
        ({"question": []}, {"prompt": "raw"}, "`prompt` has no messages"),
        (turns(role="user"), {"prompt": "raw"}, "message 0 of `prompt` has no `content`"),
        (turns(**{"from": "human", "value": "1"}), {"prompt": "raw"},
         "message 0 of `prompt` has `from` and `value`: to read such turns, use `sharegpt(...)`"),
        (turns(role="human", content="1"), {"prompt": "raw"},
         "message 0 of `prompt` has the role `human`, which is not one of system, developer, user"),
        (turns(role="user", content=[{"type": "text", "text": "1"}]), {"prompt": "raw"},
         "message 0 of `prompt` has content that is a list of parts, not text"),
        (turns(role="user", content=3), {"prompt": "raw"},
         "message 0 of `prompt` has content that is a number, not text"),
        ({"question": None}, {"prompt": "raw"}, "`prompt` is null"),
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_said(opened: Any, row: Any, columns: Any, why: str) -> None:
    data, events = opened(row, GOOD, target=None, **columns)
    assert data.next_prompt().row == 1
    assert events[0]["message"].startswith(why)


def test_text_is_no_chat() -> None:
    with pytest.raises(DroppedRow, match=r"`chat` is text, not messages$"):
        messages("`chat`", "hi")


def test_a_row_counts_once_however_often_it_is_passed(opened: Any) -> None:
    data, events = opened(GOOD, {})
    for _ in range(5):
        data.next_prompt()
    assert (data.cursor, data.dropped) == (9, {"bad row": 1})
    assert [event["kind"] for event in events] == ["row.dropped", "warning"]


def test_a_first_look_says_what_will_be_left_out(opened: Any) -> None:
    data, events = opened(GOOD, {}, {"question": "111111+1=", "answer": "2"}, max_prompt_tokens=4)
    data.check(data.prompt, seconds=60.0)
    assert data.cursor == 0
    checked, warning = events[-2:]
    assert (checked["kind"], checked["rows"], checked["checked"]) == ("data.checked", 3, 3)
    assert checked["dropped"] == {"bad row": 1, "too long": 1}
    assert warning["text"].startswith(
        "dataset rows: 2 of 3 rows left out (bad row: 1, too long: 1)"
    )
    assert "rows.jsonl:2: the row has no column" in warning["text"]


def test_a_first_look_ends_with_its_time(opened: Any) -> None:
    data, events = opened(*[GOOD] * 50)
    data.check(data.prompt, seconds=-1.0)
    assert (events[-1]["kind"], events[-1]["checked"]) == ("data.checked", 0)


def test_too_many_bad_rows_end_the_run_with_the_first_ones(opened: Any) -> None:
    data, _ = opened(*[{}] * 30, *[GOOD] * 300)
    with pytest.raises(GuardError, match=r"6 of the first 6 rows cannot be used") as caught:
        data.check(data.prompt, seconds=60.0)
    assert "max_bad_rows = 0.05" in str(caught.value)
    assert str(caught.value).endswith("its columns are none (also 2, 3, 4, 5, ...: 6 rows)")
    assert "max_bad_rows" in caught.value.remedy


def test_the_budget_is_a_share_of_what_was_looked_at(opened: Any) -> None:
    data, _ = opened(*[GOOD] * 290, *[{}] * 20, GOOD, max_bad_rows=0.07)
    data.check(data.prompt, seconds=60.0)
    assert data.dropped == {"bad row": 20}


def test_without_a_budget_the_first_bad_row_ends_the_run(opened: Any) -> None:
    data, _ = opened(GOOD, {}, max_bad_rows=0.0)
    data.next_prompt()
    with pytest.raises(GuardError, match="1 of the first 2 rows"):
        data.next_prompt()


def test_long_rows_are_no_mistake(opened: Any) -> None:
    rows = [{"question": "111111+1=", "answer": "2"}] * 30
    data, _ = opened(*rows, GOOD, max_prompt_tokens=4)
    assert data.next_prompt().row == 30
    assert data.dropped == {"too long": 30}


def test_the_data_end_before_bad_rows_of_the_next_epoch(opened: Any) -> None:
    data, _ = opened(GOOD, GOOD, {})
    data.end = 3
    rows = iter(data.next_prompt, None)
    assert [prompt.row for prompt in rows] == [0, 1]


def test_supervised_rows_are_left_out_too(opened: Any) -> None:
    talk = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    bad = ({"messages": None}, {"messages": [{"role": "user", "content": None}]}, {"messages": 3})
    rows = [{"messages": talk}, *bad]
    data, _ = opened(*rows, prompt=None, target=None, chat="messages", learn="assistant_turns")
    assert len(data.next_batch(2, 64, pack=False)) == 2
    assert data.dropped == {"bad row": 3}


def test_a_role_that_the_chat_template_names_is_one(opened: Any) -> None:
    data, _ = opened(GOOD)
    template = "{{ messages | selectattr('role', '==', 'human') }}"
    assert "human" in ChatTokenizer(data.tokenizer.tokenizer, template).roles


def test_an_answer_of_a_pair_is_by_the_assistant() -> None:
    chat = [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}]
    with pytest.raises(DroppedRow, match="`chosen` ends with a message of `user`"):
        sides(None, (chat, chat))


def test_a_dataset_of_which_nothing_can_be_used_is_refused_at_the_start(opened: Any) -> None:
    row = {"messages": [{"role": "user", "content": "1+1="}]}
    data, _ = opened(row, row, prompt=None, target=None, chat="messages", learn="assistant_turns")
    with pytest.raises(RunError, match=r"none of the first 2 .* \(nothing to learn: 2\)"):
        data.check(lambda row_id, row: data.sample(row_id, row, 64), seconds=60.0)


def test_a_row_without_a_column_that_a_reward_takes_is_a_bad_row(
    opened: Any, make_job: Any
) -> None:
    inputs = {"response": "response", "level": "column level", "bonus": "column? bonus"}
    draw = {"id": "1", "name": "p", "op": "draw", "target": "rows", "level": "group"}
    score = {"id": "2", "name": "s", "op": "score", "target": "r", "level": "rollout"}
    score["inputs"] = (spec.Input(argument="rollout", edge="p"),)
    job = make_job(
        rewards={"r": spec.Reward(kind="python", function="f", inputs=inputs)},
        nodes=tuple(spec.Node(origin="", **node) for node in (draw, score)),
        origins={"r": "t.forge:9:8"},
    )
    data, events = opened(GOOD, {**GOOD, "level": 3})
    data.wanted = Wanted.by(job, "rows")
    assert data.next_prompt().columns == {"level": 3}
    assert events[0]["message"] == (
        "the row has no column `level`, a parameter of reward r (at t.forge:9:8); its columns are "
        "answer, question"
    )


@pytest.mark.parametrize(
    ("answers", "why", "reason"),
    [
        (("", "3"), "`chosen` is empty", "bad row"),
        (("2", " "), "`rejected` is empty", "bad row"),
        (("2", "2"), "`chosen` and `rejected` are the same answer", "nothing to learn"),
        (([{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}], "2"),
         "`chosen` and `rejected` are the same answer", "nothing to learn"),
    ],
)  # fmt: skip
def test_a_pair_without_a_preference_is_left_out(answers: Any, why: str, reason: str) -> None:
    with pytest.raises(DroppedRow) as caught:
        sides("1+1=", answers)
    assert (str(caught.value), caught.value.reason) == (why, reason)


def test_a_chat_whose_answers_are_empty_is_left_out(opened: Any) -> None:
    empty = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": " "}]
    data, _ = opened({"messages": empty}, prompt=None, target=None, chat="messages")
    with pytest.raises(RunError, match="every message with role `assistant` is empty"):
        data.next_batch(1, 64)


def test_a_first_look_says_that_a_step_draws_more_rows(opened: Any) -> None:
    data, events = opened(GOOD, GOOD, {})
    data.per_step = 3
    data.check(data.prompt, seconds=60.0)
    text = (
        "dataset rows: a step draws 3 rows, but only 2 are usable, so some rows occur several "
        "times in one step"
    )
    assert events[-1] == {"kind": "warning", "dataset": "rows", "text": text}
