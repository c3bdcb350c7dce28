"""Trajectories of several rows on real meshes: a template that shortens earlier turns, three steps.

Every row is what the engine saw, so that with equal weights the ratio of every token is 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from shipped_game import PIPELINES, lines, played

SHORTENS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ m.content.split('<answer>')[-1].split('</answer>')[0] }}{{ eos_token }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)
"""of earlier turns it keeps the answer, as templates of thinking models do"""
EDITS = (
    ("f32, context = 256", f'f32, context = 256, chat_template = "{SHORTENS}"'),
    ("prompt = row.question", "prompt = chat(user = row.question)"),
    ("tool_timeout = 5s", "tool_timeout = 5s, history = template"),
    ("rl.dapo", "rl.gspo"),
    ("seq_len = 96", "seq_len = 160"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("history"), steps=3, edits=EDITS)


def samples(run: Path) -> list[dict[str, Any]]:
    batches = [json.loads((run / f"batches/step-{k}.json").read_text()) for k in (1, 2, 3)]
    return [sample for found in batches for sample in found["batch"]["samples"]]


def rows_of(sample: dict[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
    """The rows of a recorded sample: prompt, and what the policy wrote behind it."""
    own = [False] * sample["num_prompt"] + sample["mask"]
    ends = [0, *sample["row_starts"], len(own)]
    for begin, end in pairwise(ends):
        written = [i for i in range(begin, end) if own[i]]
        tokens = sample["token_ids"]
        yield tokens[begin : written[0]], [tokens[i] for i in written]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_trainer_scores_rows_as_the_engine_saw_them(run: Path) -> None:
    steps = lines(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    first = steps[0]
    assert first["age_max"] == 0
    assert first["rows"] > first["sequences"] == 48
    near = tolerance.near(torch.float32, tolerance.of_shipped("tiny_math", 256, first["tokens"]))
    assert first["loss/ratio"] == pytest.approx(1.0, **near)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_row_begins_with_what_the_template_makes_of_the_turns_before(run: Path) -> None:
    from forgedsl_runtime.data.chat import ChatTokenizer

    tokenizer = ChatTokenizer.load(str(PIPELINES / "models/tiny_math"))
    several = 0
    for sample in samples(run):
        rows = list(rows_of(sample))
        several += len(rows) > 1
        for (before, written), (prompt, _) in pairwise(rows):
            said = tokenizer.decode(written).removesuffix("<eos>")
            short = said.split("<answer>")[-1].split("</answer>")[0]
            assert tokenizer.decode(prompt).startswith(tokenizer.decode(before) + short)
    assert several


@pytest.mark.full
@pytest.mark.timeout(300)
def test_events_and_samples_count_rows(run: Path) -> None:
    shown = [sample for sample in lines(run / "samples.jsonl") if sample.get("rows", 1) > 1]
    assert shown
    assert all(sample["rows"] <= sample["turns"] for sample in shown)
