"""Trajectories on real meshes: the shipped game for two steps, its environment dying once.

What the engine saw is what the trainer scores: with equal weights the ratio of every token is 1.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tolerance
import torch
from shipped_game import PIPELINES, lines, played

DIES = """
    def step(self, turn: Turn) -> Step:
        import os
        from pathlib import Path

        marker = Path(__file__).with_name("died")
        if turn.number == 1 and not marker.exists():
            marker.touch()
            os._exit(3)
        return self.answered(turn)

    def answered(self, turn: Turn) -> Step:"""


def dying(source: str) -> str:
    """The environment whose process ends once, in the second turn of a trajectory."""
    made = source.replace("\n    def step(self, turn: Turn) -> Step:", DIES)
    assert made != source
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("game"), steps=2, environment=dying)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_trainer_scores_what_the_engine_saw(run: Path) -> None:
    first = lines(run / "metrics.jsonl")[0]
    assert first["age_max"] == 0
    near = tolerance.near(torch.float32, tolerance.of_shipped("tiny_math", 256, first["tokens"]))
    assert first["loss/ratio"] == pytest.approx(1.0, **near)


@pytest.mark.timeout(300)
def test_the_mask_covers_the_turns_and_what_lies_between_is_the_environments(run: Path) -> None:
    from forgedsl_runtime.data.chat import ChatTokenizer

    tokenizer = ChatTokenizer.load(str(PIPELINES / "models/tiny_math"))
    samples = json.loads((run / "batches/step-1.json").read_text())["batch"]["samples"]
    observed = []
    for sample in samples:
        prompt = tokenizer.decode(sample["token_ids"][: sample["num_prompt"]])
        written = sample["token_ids"][sample["num_prompt"] :]
        between = [t for t, mine in zip(written, sample["mask"], strict=True) if not mine]
        said = tokenizer.decode(between)
        assert said.replace(prompt, "").strip("+-?") == ""
        assert all(
            value == 0.0
            for value, mine in zip(sample["token_fields"]["behavior"], sample["mask"], strict=True)
            if not mine
        )
        observed.append(bool(said))
    assert any(observed)
    assert not all(observed)


@pytest.mark.timeout(300)
def test_a_process_that_dies_costs_its_trajectories_one_more_try(run: Path) -> None:
    warnings = [e["text"] for e in lines(run / "events.jsonl") if e["kind"] == "warning"]
    assert any("environment game" in t and "exit code 3 in the call" in t for t in warnings)
    ended = {sample["ended"] for sample in lines(run / "samples.jsonl")}
    assert ended <= {"done", "turns", "tokens"}
