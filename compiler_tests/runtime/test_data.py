"""Dataset readers: prompts, supervised samples, pairs, order, resume and what goes wrong."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.errors import RunError
from forgedsl.lower import job
from forgedsl_runtime.data import ChatTokenizer, DatasetReader
from forgedsl_runtime.data.reader import Wanted
from forgedsl_runtime.data.sources import Mixture, Table
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.packing import pack

ARITHMETIC = Path(__file__).parents[2] / "pipelines" / "tokenizers" / "arithmetic"
SOURCE = job.FileSource(kind="jsonl", path="unused", sha256="")
PROGRAM = SimpleNamespace(
    ask=lambda row: [{"role": "user", "content": row.question}],
    raw=lambda row: row.question,
    answer=lambda row: row.answer,
    bad=lambda row: int("x"),
    missing=lambda row: row.qestion,
    messages=lambda row: row.messages,
    chosen=lambda row: row.chosen,
    rejected=lambda row: row.rejected,
)
SUMS = [{"question": f"{n}+{n}=", "answer": str(2 * n)} for n in range(10)]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(str(ARITHMETIC))


def reader(
    tokenizer: ChatTokenizer, rows: list[dict[str, Any]], shuffle: int | None = None, **spec: Any
) -> DatasetReader:
    dataset = job.Dataset(source=SOURCE, tokenizer="policy", shuffle=shuffle, **spec)
    source = Table(rows, shuffle)
    return DatasetReader(dataset, source, tokenizer, PROGRAM, name="sums", origin="x.forge:3:1")


# ---- prompts


def test_prompt_holds_text_tokens_target_and_cursor(tokenizer: ChatTokenizer) -> None:
    prompt = reader(tokenizer, SUMS, prompt="ask", target="answer").next_prompt()
    assert (prompt.text, prompt.target, prompt.row, prompt.cursor) == ("0+0=", "0", 0, 1)
    assert tokenizer.decode(prompt.token_ids) == "0+0="


def test_prompt_may_be_plain_text(tokenizer: ChatTokenizer) -> None:
    assert reader(tokenizer, SUMS, prompt="raw").next_prompt().text == "0+0="


def test_without_shuffle_rows_come_in_order_for_ever(tokenizer: ChatTokenizer) -> None:
    data = reader(tokenizer, SUMS[:3], prompt="ask")
    assert [data.next_prompt().row for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert data.cursor == 7


def test_every_epoch_is_another_permutation(tokenizer: ChatTokenizer) -> None:
    data = reader(tokenizer, SUMS, shuffle=1, prompt="ask")
    first, second = ([data.next_prompt().row for _ in range(10)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_reader_sent_to_a_cursor_continues_with_the_row_that_followed(
    tokenizer: ChatTokenizer,
) -> None:
    data = reader(tokenizer, SUMS, shuffle=1, prompt="ask")
    rows = [data.next_prompt().row for _ in range(17)]
    expected = [data.next_prompt().row for _ in range(15)]
    resumed = reader(tokenizer, SUMS, shuffle=1, prompt="ask")
    resumed.seek(17)
    assert [resumed.next_prompt().row for _ in range(15)] == expected
    resumed.seek(5)
    assert resumed.next_prompt().row == rows[5]


def test_eval_prompts_come_in_order_and_leave_the_cursor(tokenizer: ChatTokenizer) -> None:
    data = reader(tokenizer, SUMS, prompt="ask", max_prompt_tokens=4)
    assert [p.row for p in data.prompts(limit=3)] == [0, 1, 2]
    assert len(data.prompts()) == 10
    assert data.cursor == 0


def test_long_prompts_are_dropped_and_counted(tokenizer: ChatTokenizer) -> None:
    rows = [{"question": "1+1="}, {"question": "100+1="}, {"question": "2+2="}]
    data = reader(tokenizer, rows, prompt="ask", max_prompt_tokens=4)
    assert [data.next_prompt().cursor for _ in range(3)] == [1, 3, 4]
    assert data.dropped == {"too long": 1}
    assert [p.row for p in data.prompts(2)] == [0, 2]


def test_long_prompts_may_lose_their_beginning(tokenizer: ChatTokenizer) -> None:
    rows = [{"question": "100+1="}]
    data = reader(tokenizer, rows, prompt="ask", max_prompt_tokens=4, on_long="truncate")
    assert data.next_prompt().text == "0+1="


def test_long_prompts_may_be_an_error(tokenizer: ChatTokenizer) -> None:
    rows = [{"question": "100+1="}]
    data = reader(tokenizer, rows, prompt="ask", max_prompt_tokens=4, on_long="error")
    message = r"dataset sums: row 0: the prompt has 6 tokens, more than max_prompt_tokens = 4"
    with pytest.raises(RunError, match=message) as caught:
        data.next_prompt()
    assert caught.value.origin == "x.forge:3:1"
    assert "on_long" in caught.value.remedy


def test_text_that_the_tokenizer_does_not_know_is_told_at_the_start(
    tokenizer: ChatTokenizer,
) -> None:
    """Of prompts, and of samples, whose tokens do not say which characters they were."""
    say = [{"role": "user", "content": "1-1="}, {"role": "assistant", "content": "ZQ"}]
    plain = [{"role": "user", "content": "1-1="}, {"role": "assistant", "content": "0"}]
    rows = [{"question": "Q1-1=", "messages": say}] * 3
    rows += [{"question": "1-1=", "messages": plain}] * 10
    told: list[str] = []
    for make in ("prompt", "sample"):
        data = reader(tokenizer, rows, prompt="ask", chat="messages")
        data.drops.tell = lambda kind, **said: told.append(said.get("text", ""))
        made = data.prompt if make == "prompt" else partial(data.sample, seq_len=64)
        data.check(made, 9.0)
    of = "dataset sums: 3 of 13 rows have text that the tokenizer of policy does not know"
    assert [text.partition(": the model")[0] for text in told if text] == [
        f'{of} ("Q")', f'{of} ("Q" and "Z")',
    ]  # fmt: skip


def test_a_dataset_without_a_usable_row_ends_the_run(tokenizer: ChatTokenizer) -> None:
    data = reader(tokenizer, SUMS, prompt="ask", max_prompt_tokens=3)
    with pytest.raises(RunError, match=r"none of the first 10 rows can be used \(too long: 10\)"):
        data.next_prompt()


def test_a_missing_column_names_the_columns_there_are(tokenizer: ChatTokenizer) -> None:
    data = reader(tokenizer, SUMS, prompt="missing")
    message = r"sums: .*row 0: the row has no column `qestion`; its columns are answer, question"
    with pytest.raises(RunError, match=f"(?s){message}"):
        data.next_prompt()


def test_a_failing_row_function_names_row_and_error(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(RunError, match=r"(?s)dataset sums: .*row 0: ValueError: invalid"):
        reader(tokenizer, SUMS, prompt="bad").next_prompt()


# ---- supervised samples


def chat(*turns: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)
    ]


def learned(tokenizer: ChatTokenizer, messages: Any, learn: Any) -> str:
    tokens, mask = tokenizer.conversation(messages, learn)
    return tokenizer.decode([token for token, on in zip(tokens, mask, strict=True) if on])


TALK = chat("1+1=", "<answer>2</answer>", "2+2=", "<answer>4</answer>")


@pytest.mark.parametrize(
    ("learn", "text"),
    [
        ("assistant_turns", "<answer>2</answer><eos><answer>4</answer><eos>"),
        ("last_turn", "<answer>4</answer><eos>"),
        ("all", "1+1=<answer>2</answer><eos>2+2=<answer>4</answer><eos>"),
    ],
)
def test_learned_tokens(tokenizer: ChatTokenizer, learn: str, text: str) -> None:
    assert learned(tokenizer, TALK, learn) == text


QWEN3_LIKE = """{% for m in messages %}{% set c = m.content %}
{%- if m.role == 'assistant' %}{% set parts = c.split('</think>') %}{% set c = parts[-1] %}
{%- if loop.last %}{% set c = '<think>' + (parts[0].replace('<think>', '') if parts | length > 1
  else '') + '</think>' + c %}{% endif %}{% endif -%}
[{{ m.role[0] | replace('u', '(') | replace('a', ')') }}]{{ c }}<eos>
{% endfor %}{% if add_generation_prompt %}[)]{% endif %}"""


@pytest.fixture(scope="module")
def rewriting() -> ChatTokenizer:
    """Its template hides the thinking of earlier turns and shows an empty one in the last."""
    return ChatTokenizer.load(str(ARITHMETIC), QWEN3_LIKE)


def test_template_that_hides_earlier_thinking(rewriting: ChatTokenizer) -> None:
    messages = chat("1+1=", "<think>1</think>2", "2+2=", "<think>2</think>4")
    expected = "2<eos><think>2</think>4<eos>"
    assert learned(rewriting, messages, "assistant_turns") == expected


def test_template_that_adds_thinking(rewriting: ChatTokenizer) -> None:
    assert learned(rewriting, chat("1+1=", "2"), "assistant_turns") == "<think></think>2<eos>"


def test_same_turn_twice_and_content_that_repeats_the_prompt(tokenizer: ChatTokenizer) -> None:
    assert learned(tokenizer, chat("1", "1", "1", "1"), "assistant_turns") == "1<eos>1<eos>"
    assert learned(tokenizer, chat("1", "1", "1", "1"), "last_turn") == "1<eos>"


def test_empty_turn_learns_to_stop(tokenizer: ChatTokenizer) -> None:
    assert learned(tokenizer, chat("1+1=", ""), "assistant_turns") == "<eos>"


def test_tool_calls_are_refused(tokenizer: ChatTokenizer) -> None:
    messages = [*chat("1"), {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]
    with pytest.raises(RunError, match="turn 1 calls tools"):
        tokenizer.conversation(messages, "assistant_turns")


def test_a_tokenizer_without_template_is_an_error() -> None:
    bare = ChatTokenizer.load(str(ARITHMETIC), "")
    with pytest.raises(RunError, match="the tokenizer has no chat template"):
        bare.prompt_text(chat("1"))


def demos(tokenizer: ChatTokenizer, talks: list[Any], **spec: Any) -> DatasetReader:
    rows = [{"messages": talk} for talk in talks]
    return reader(tokenizer, rows, chat="messages", learn="assistant_turns", **spec)


def test_sample_splits_at_the_first_learned_token(tokenizer: ChatTokenizer) -> None:
    (sample,) = demos(tokenizer, [chat("1+1=", "2")]).next_batch(1, 7)
    assert (len(sample.token_ids), sample.num_prompt, sample.mask) == (6, 4, [True, True])


def test_batch_fills_its_rows_and_the_next_goes_on(tokenizer: ChatTokenizer) -> None:
    data = demos(tokenizer, [chat(f"{n}+1=", "1") for n in range(9)])
    firsts = [[tokenizer.decode(s.token_ids[:1]) for s in data.next_batch(2, 13)] for _ in range(2)]
    assert firsts == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]
    assert data.cursor == 8


def test_batch_without_packing_has_one_sample_a_row(tokenizer: ChatTokenizer) -> None:
    data = demos(tokenizer, [chat(f"{n}+1=", "1") for n in range(9)])
    assert len(data.next_batch(3, 100, pack=False)) == 3


def test_long_chats_and_chats_without_an_answer_are_dropped(tokenizer: ChatTokenizer) -> None:
    talks = [chat("1+1=", "1" * 50), chat("2+2="), chat("3+3=", "6")]
    data = demos(tokenizer, talks)
    (sample,) = data.next_batch(1, 6)
    assert tokenizer.decode(sample.token_ids) == "3+3=6<eos>"
    assert data.dropped == Counter({"too long": 1, "nothing to learn": 1})


def test_long_chats_may_lose_their_end(tokenizer: ChatTokenizer) -> None:
    data = demos(tokenizer, [chat("1+1=", "1" * 50)], on_long="truncate")
    (sample,) = data.next_batch(1, 6)
    assert (len(sample.token_ids), sample.mask) == (6, [True, True])


# ---- pairs


def test_pair_of_answers_to_a_prompt(tokenizer: ChatTokenizer) -> None:
    rows = [{"question": "1+1=", "chosen": "2", "rejected": "11"}]
    data = reader(tokenizer, rows, prompt="ask", chosen="chosen", rejected="rejected")
    chosen, rejected = data.next_pair(64, 2)
    assert chosen.prompt is rejected.prompt
    assert [tokenizer.decode(r.token_ids) for r in (chosen, rejected)] == ["2<eos>", "11<eos>"]
    assert (chosen.prompt.text, chosen.prompt.cursor, rejected.sibling) == ("1+1=", 1, 1)


@pytest.mark.parametrize(("on_long", "kept"), [("drop", ["3"]), ("truncate", ["111", "3"])])
def test_answers_of_a_pair_that_do_not_fit(
    tokenizer: ChatTokenizer, on_long: str, kept: list[str]
) -> None:
    rows = [{"question": "1+1=", "chosen": "2", "rejected": text} for text in ("1" * 9, "3")]
    data = reader(
        tokenizer, rows, prompt="ask", chosen="chosen", rejected="rejected", on_long=on_long
    )
    found = [data.next_pair(7, 2)[1] for _ in kept]
    assert [tokenizer.decode(r.token_ids).removesuffix("<eos>") for r in found] == kept
    assert [len(r.mask) for r in found] == [r.num_tokens for r in found]


@pytest.mark.parametrize(
    ("chosen", "rejected", "kept"),
    [(5, 5, (6, 6)), (6, 5, (6, 6)), (9, 9, (6, 6)), (1, 12, (2, 10)), (30, 1, (10, 2))],
)
def test_both_answers_of_a_pair_fit_in_the_only_row(
    tokenizer: ChatTokenizer, chosen: int, rejected: int, kept: tuple[int, int]
) -> None:
    rows = [{"question": "1+1=", "chosen": "1" * chosen, "rejected": "2" * rejected}]
    read = partial(reader, tokenizer, rows, prompt="ask", chosen="chosen", rejected="rejected")
    pair = read(on_long="truncate").next_pair(20, 1)
    assert tuple(r.num_tokens for r in pair) == kept
    samples = [
        Sample(token_ids=[*r.prompt.token_ids, *r.token_ids], num_prompt=4, mask=r.mask)
        for r in pair
    ]
    (microbatch,) = pack(samples, seq_len=20, rows=1, rank=0, world=1, pairs=True)
    assert microbatch.members == [0, 1]


def test_a_pair_that_is_longer_than_the_only_row_is_left_out(tokenizer: ChatTokenizer) -> None:
    rows = [{"question": "1+1=", "chosen": "1" * n, "rejected": "2" * 5} for n in (6, 5)]
    read = partial(reader, tokenizer, rows, prompt="ask", chosen="chosen", rejected="rejected")
    data = read()
    assert [r.num_tokens for r in data.next_pair(20, 1)] == [6, 6]
    assert data.dropped == Counter({"too long": 1})
    assert [r.num_tokens for r in read(on_long="error").next_pair(20, 2)] == [7, 6]
    with pytest.raises(RunError, match=r"the pair has 21 tokens .*, which share a row") as raised:
        read(on_long="error").next_pair(20, 1)
    assert raised.value.remedy.startswith("raise batch.rows to 2, or batch.seq_len, or set on_long")


def test_pair_of_chats(rewriting: ChatTokenizer) -> None:
    rows = [{"chosen": chat("1+1=", "2"), "rejected": chat("1+1=", "3")}]
    data = reader(rewriting, rows, chosen="chosen", rejected="rejected")
    chosen, _ = data.next_pair(64, 2)
    assert chosen.prompt.text == "[(]1+1=<eos>\n[)]"
    assert rewriting.decode(chosen.token_ids) == "<think></think>2<eos>"


def test_pair_of_chats_with_different_prompts_is_an_error(tokenizer: ChatTokenizer) -> None:
    rows = [{"chosen": chat("1+1=", "2"), "rejected": chat("1+2=", "3")}]
    with pytest.raises(RunError, match="`chosen` and `rejected` have different prompts"):
        reader(tokenizer, rows, chosen="chosen", rejected="rejected").next_pair(64, 2)


# ---- mixtures


def test_mixture_keeps_its_weights_everywhere_and_resumes() -> None:
    parts = [Table([{"n": n} for n in range(size)], 3) for size in (10, 7)]
    mixture = Mixture(parts, [3.0, 1.0])
    ids = [mixture.row_at(p)[0] for p in range(100)]
    assert Counter(i % 2 for i in ids) == {0: 75, 1: 25}
    assert max(abs(sum(i % 2 for i in ids[:n]) - n / 4) for n in range(100)) < 1.0
    assert [Mixture(parts, [3.0, 1.0]).row_at(p)[0] for p in (99, 5, 50)] == [
        ids[99],
        ids[5],
        ids[50],
    ]


# ---- what rewards ask for


def test_prompts_carry_the_columns_and_messages_that_rewards_ask_for(
    tokenizer: ChatTokenizer, make_job: Any
) -> None:
    inputs = {"messages": "messages", "level": "column level", "bonus": "column? bonus"}
    reward = job.Reward(kind="python", function="f", inputs=inputs)
    data = reader(tokenizer, [SUMS[0] | {"level": 3}], prompt="ask")
    data.wanted = Wanted.by(make_job(rewards={"r": reward}), "sums")
    prompt = data.next_prompt()
    assert prompt.columns == {"level": 3}
    assert prompt.messages == [{"role": "user", "content": "0+0="}]
