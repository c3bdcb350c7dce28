"""A policy with experts goes through a whole run: generators take its weights at each sync."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FLAGSHIP = Path(__file__).parents[2] / "pipelines/grpo_math.forge"
MIXTURE = (
    "policy.source=random(seed=1)",
    'policy.tokenizer=local("models/tiny_math")',
    "policy.arch=qwen3_moe(layers=2,hidden=64,heads=2,kv_heads=1,head_dim=32,ffn=32,vocab=64,"
    "experts=8,active=3)",
    "policy.dtype=f32",
)
"""settings that make the flagship's policy a small mixture of experts"""


def run(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """The metrics of a run of the flagship on CPUs."""
    words = ["run", str(FLAGSHIP), "--profile", "cpu", *MIXTURE, *settings]
    words += ["held_out.every=100", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return told(folder, "metrics")


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a file of the run."""
    lines = (folder / f"run/{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def arrived(folder: Path) -> list[int]:
    """The versions of the weights that reached the generator."""
    return [event["version"] for event in told(folder, "events") if event["kind"] == "sync.end"]


@pytest.mark.deep
@pytest.mark.timeout(420)
def test_ranks_share_the_experts_of_a_whole_run(tmp_path: Path) -> None:
    """A trainer of two ranks and its reference: rewards, steps, syncs, a checkpoint, an export."""
    shared = ("procs=2", "parallel.ep=2")
    rows = run(tmp_path, "schedule.steps=3", "prompts=8", 'checkpoint.export=hf("export")',
               *(f"trainer.{each}" for each in shared))  # fmt: skip
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(1.0 < row["experts_load"] < 8 / 3 for row in rows)
    assert all(0 < row["grad_norm"] < 100 for row in rows)
    assert arrived(tmp_path) == [0, 1, 2, 3]


@pytest.mark.deep
@pytest.mark.timeout(420)
def test_an_engine_has_the_weights_of_each_sync(tmp_path: Path) -> None:
    """The generator compares its log-probs with the trainer's after a sync, and ends the run if
    they differ: a run that goes on is the proof."""
    rows = run(tmp_path, "schedule.steps=2", "prompts=8")
    assert [row["step"] for row in rows] == [1, 2]
    assert arrived(tmp_path) == [0, 1, 2]
