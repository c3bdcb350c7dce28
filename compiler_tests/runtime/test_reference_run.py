"""Runs and Sessions whose KL reference is the trainer: the pipeline of docs/guide/adapters.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forgedsl
from forgedsl.runs.data import load_run
from forgedsl.runs.page import services

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]
GUIDE = Path(__file__).parents[2] / "docs/guide/adapters.md"
FOUND = re.search(r"```forge reference.forge\n(.*?)```", GUIDE.read_text("utf-8"), re.S)
assert FOUND is not None
SERVED = FOUND[1] + "checkpoint { every = 2 }\n"
KL = "loss/kl_ref"
APART = SERVED.replace("served_by = trainer", "device = cpu")


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Metrics of a run of these words."""
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", "run", *words], cwd=folder, capture_output=True,
        text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return rows(folder / "run/metrics.jsonl")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def proofs(folder: Path) -> list[tuple[str, int]]:
    found = rows(folder / "run/proofs.jsonl")
    return [(each["service"], each["proved"]) for each in found if each["proof"] == "frozen"]


def measured(row: dict[str, Any]) -> dict[str, float]:
    """What does not depend on time."""
    names = ("loss", "grad_norm", "reward_mean", "entropy", "tokens", KL)
    return {name: row[name] for name in names}


def test_a_run_is_that_with_a_reference_of_its_own_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    found = {}
    for name, text in (("served", SERVED), ("apart", APART)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sums.forge").write_text(text)
        found[name] = run(folder, "sums.forge", "--run-dir", "run", "schedule.steps=4")
    assert [row["step"] for row in found["served"]] == [1, 2, 3, 4]
    for ours, theirs in zip(found["served"], found["apart"], strict=True):
        assert measured(ours) == pytest.approx(measured(theirs), rel=1e-6, abs=1e-6)
    distances = [row[KL] for row in found["served"]]
    assert distances[0] < 1e-10
    assert distances[-1] > 1e-5
    assert proofs(tmp_path / "served") == proofs(tmp_path / "apart") == [("reference", 35)]
    data = load_run(tmp_path / "served/run")
    (row,) = [each for each in services(data) if each["name"] == "reference"]
    assert row["size"] == "served by trainer"
    more = run(tmp_path / "served", "sums.forge", "--resume", "run", "schedule.steps=6")
    assert [row["step"] for row in more] == [1, 2, 3, 4, 5, 6]
    assert all(row[KL] > 1e-5 for row in more[4:])
    assert proofs(tmp_path / "served") == [("reference", 35)] * 2


def test_a_reference_draws_the_random_weights_of_its_trainer(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    drawn = (
        "source = random(7), arch = qwen3(layers = 2, hidden = 64, heads = 4, kv_heads = 2, "
        'head_dim = 32, ffn = 128, vocab = 48), tokenizer = local("forgedsl:models/tiny_math")'
    )
    text = APART.replace('source = local("forgedsl:models/tiny_math")', drawn)
    (tmp_path / "sums.forge").write_text(text)
    (first,) = run(tmp_path, "sums.forge", "--run-dir", "run", "schedule.steps=1")
    assert first[KL] < 1e-10
    (line,) = [row for row in rows(tmp_path / "run/proofs.jsonl") if row["proof"] == "frozen"]
    assert (line["service"], line["like"]) == ("reference", "trainer")
    assert line["proved"] == line["tensors"] > 20
    run(tmp_path, "sums.forge", "--resume", "run", "schedule.steps=2")


def test_a_session_has_a_reference_by_its_trainer(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    (tmp_path / "sums.forge").write_text(SERVED)
    pipeline = forgedsl.load(tmp_path / "sums.forge", set=["schedule.steps=4"])
    with pipeline.session(tmp_path / "run") as s:
        groups = s["generator"].sample(s["sums"].draw(2), n=4, seed=3).result()
        reference, trainer = s["reference"], s["trainer"]
        first = [reference.logprobs(group).result() for group in groups]
        assert first == [trainer.logprobs(group).result() for group in groups]
        for number, group in enumerate(groups):
            group.ref = first[number]
            group.adv = [1.0, -1.0, 0.5, -0.5]
        batch = s.batch(groups, adv="adv", ref="ref")
        trainer.save_state("new").result()
        trainer.forward_backward(batch, "rl.grpo").result()
        between = reference.logprobs(groups[0])
        trainer.optim_step(lr=0.05).result()
        assert between.result() == first[0]
        assert [reference.logprobs(group).result() for group in groups] == first
        assert [trainer.logprobs(group).result() for group in groups] != first
        trainer.load_state("new").result()
        assert [trainer.logprobs(group).result() for group in groups] == first
