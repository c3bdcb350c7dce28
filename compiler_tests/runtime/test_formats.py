"""Data as it is published, from columns to the tokens that carry loss, by a real chat template.

SmolLM2's (ChatML) is in the folder that `make smollm` makes, which takes a minute; where it cannot
be made, these tests are skipped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgedsl import api
from forgedsl.errors import LaunchError
from forgedsl.lower.build import lower
from forgedsl.pipelines import make_smollm
from forgedsl_runtime.data.reader import DatasetReader, open_dataset
from forgedsl_runtime.modules import load_module

FOLDER = make_smollm.home()
pytestmark = pytest.mark.full


@pytest.fixture(scope="module", autouse=True)
def folder() -> None:
    try:
        make_smollm.make()
    except LaunchError as error:
        pytest.skip(f"no real model: {error}")


TEXT = """forge 1
import "std/rl" as rl
model base {
  source = random(1), arch = smollm2(size = "135M"), dtype = f32, context = 128
  tokenizer = local("tokenizer")
}
dataset demos { source = SOURCE, shuffle = none, COLUMNS }
service trainer : titan(base) {
  device = cpu, optimizer { lr = 1e-4 }, batch { seq_len = 128, rows = 2 }
}
FLOW
schedule sync { steps = 1 }
"""
CHATS = "flow train { trainer.step(demos.batches(), loss = rl.sft) }"
PAIRS = """service reference : titan(base) { device = cpu }
flow train {
  pair = demos.pairs(1)
  trainer.step(replay(pair, ref = reference.logprobs(pair)), loss = rl.dpo)
}"""
SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)


def opened(
    folder: Path, columns: str, source: str = 'jsonl("rows.jsonl")', flow: str = CHATS
) -> Any:
    (folder / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FOLDER / name, folder / "tokenizer" / name)
    text = TEXT.replace("SOURCE", source).replace("FLOW", flow)
    loaded = api.load_text(text.replace("COLUMNS", columns), "x.forge", folder=folder)
    made = lower(loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=folder)
    assert made is not None, [d.message for d in loaded.reporter]
    for path, place in made.files:
        (folder / place).parent.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / place)
    program = load_module("program", made.job.program)
    return open_dataset(made.job, "demos", program=program, job_dir=folder, run_dir=folder)


def write(folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def shown(reader: DatasetReader, tokens: list[int], num_prompt: int, mask: list[bool]) -> str:
    """The text, token by token; stretches that carry loss stand in brackets."""
    on = [False] * num_prompt + mask
    text, before = "", False
    for token, learned in zip(tokens, on, strict=True):
        text += "[" if learned and not before else "]" if before and not learned else ""
        text, before = text + reader.tokenizer.decode([token]), learned
    return text + ("]" if before else "")


def learned(reader: DatasetReader) -> str:
    (sample,) = reader.next_batch(1, 128, pack=False)
    return shown(reader, sample.token_ids, sample.num_prompt, sample.mask)


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def answered(text: str) -> str:
    """An answer: the header is the template's, text and end token are the model's."""
    return f"<|im_start|>assistant\n[{text}<|im_end|>]\n"


TWO_TURNS = SYSTEM + user("1+1?") + answered("2") + user("and 2+2?") + answered("4, of course")


def test_alpaca(tmp_path: Path) -> None:
    write(tmp_path, {"instruction": "Add.", "input": "1, 2", "output": "3"})
    columns = "chat = chat(user = paragraphs(row.instruction, row.input), assistant = row.output)"
    assert learned(opened(tmp_path, columns)) == SYSTEM + user("Add.\n\n1, 2") + answered("3")


def test_alpaca_without_an_input(tmp_path: Path) -> None:
    write(tmp_path, {"instruction": "Say hi.", "input": "", "output": "hi"})
    columns = "chat = chat(user = paragraphs(row.instruction, row.input), assistant = row.output)"
    assert learned(opened(tmp_path, columns)) == SYSTEM + user("Say hi.") + answered("hi")


def test_columns_with_a_system_message(tmp_path: Path) -> None:
    write(tmp_path, {"q": "1+1?", "a": "2", "s": "Be brief."})
    columns = "chat = chat(system = row.s, user = row.q, assistant = row.a)"
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n" + user("1+1?") + answered("2")
    assert learned(opened(tmp_path, columns)) == expected


def test_sharegpt(tmp_path: Path) -> None:
    said = [("human", "1+1?"), ("gpt", "2"), ("human", "and 2+2?"), ("gpt", "4, of course")]
    write(tmp_path, {"conversations": [{"from": who, "value": text} for who, text in said]})
    columns = "chat = sharegpt(row.conversations)"
    assert learned(opened(tmp_path, columns)) == TWO_TURNS


MESSAGES = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "and 2+2?"},
    {"role": "assistant", "content": "4, of course"},
]


def jsonl(folder: Path) -> str:
    write(folder, {"messages": MESSAGES})
    return 'jsonl("rows.jsonl")'


def parquet(folder: Path) -> str:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.Table.from_pylist([{"messages": MESSAGES}]), folder / "rows.parquet"
    )
    return 'parquet("rows.parquet")'


def hub(folder: Path) -> str:
    (folder / "who/talks").mkdir(parents=True)
    text = json.dumps({"messages": MESSAGES}) + "\n"
    (folder / "who/talks/train.jsonl").write_text(text)
    return 'hf("who/talks", split = "train")'


@pytest.mark.parametrize("source", [jsonl, parquet, hub])
def test_messages_learn_every_answer(
    tmp_path: Path, source: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "prepared"))
    columns = "chat = row.messages, learn = assistant_turns"
    assert learned(opened(tmp_path, columns, source(tmp_path))) == TWO_TURNS


def test_messages_learn_the_last_answer_alone(tmp_path: Path) -> None:
    before = TWO_TURNS.replace("[2<|im_end|>]", "2<|im_end|>")
    columns = "chat = row.messages, learn = last_turn"
    assert learned(opened(tmp_path, columns, jsonl(tmp_path))) == before


def test_turns_with_from_and_value_are_told_how_to_be_read(tmp_path: Path) -> None:
    write(tmp_path, {"messages": [{"from": "human", "value": "hi"}]})
    reader = opened(tmp_path, "chat = row.messages")
    with pytest.raises(Exception, match=r"to read such turns, use `sharegpt\(...\)`"):
        reader.next_batch(1, 128)


# ---- pairs


def sides(reader: DatasetReader) -> list[str]:
    pair = reader.next_pair(128, 2)
    assert pair is not None
    return [
        shown(reader, [*s.prompt.token_ids, *s.token_ids], len(s.prompt.token_ids), s.mask)
        for s in pair
    ]


START = SYSTEM + user("1+1?") + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"chosen": MESSAGES[:2], "rejected": [MESSAGES[0], {"role": "assistant", "content": "3"}]},
         "chosen = row.chosen, rejected = row.rejected"),
        ({"prompt": MESSAGES[:1], "chosen": MESSAGES[1:2],
          "rejected": [{"role": "assistant", "content": "3"}]},
         "prompt = row.prompt, chosen = row.chosen, rejected = row.rejected"),
        ({"question": "1+1?", "good": "2", "bad": "3"},
         "prompt = chat(user = row.question), chosen = row.good, rejected = row.bad"),
        ({"a": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}],
          "b": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "3"}]},
         "chosen = sharegpt(row.a), rejected = sharegpt(row.b)"),
    ],
    ids=["whole chats", "prompt and answers", "columns", "sharegpt"],
)  # fmt: skip
def test_preferences(tmp_path: Path, row: dict[str, Any], columns: str) -> None:
    write(tmp_path, row)
    found = sides(opened(tmp_path, columns, flow=PAIRS))
    assert found == [f"{START}[2<|im_end|>]", f"{START}[3<|im_end|>]"]
