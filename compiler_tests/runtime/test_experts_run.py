"""A policy with experts goes through a whole run: generators take its weights at each sync."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FLAGSHIP = Path(__file__).parents[2] / "pipelines/grpo_math.forge"
SIZES = "hidden=64,heads=2,kv_heads=1,head_dim=32,ffn=32,vocab=64,experts=8,active=3"
MIXTURES = {
    "qwen3_moe": f"layers=2,{SIZES}",
    "glm4_moe": f"layers=3,dense_first=1,dense_ffn=96,{SIZES}",
}
"""sizes of a small mixture of experts, by family"""


def run(
    folder: Path, *settings: str, family: str = "qwen3_moe", dtype: str = "f32"
) -> list[dict[str, Any]]:
    """The metrics of a run of the flagship on CPUs whose policy is a small mixture of experts."""
    mixture = (
        "policy.source=random(seed=1)", 'policy.tokenizer=local("models/tiny_math")',
        f"policy.arch={family}({MIXTURES[family]})", f"policy.dtype={dtype}",
    )  # fmt: skip
    words = ["run", str(FLAGSHIP), "--profile", "cpu", *mixture, *settings]
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


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("family", "dtype", "tensors"),
    [
        pytest.param("qwen3_moe", "f32", 24, marks=pytest.mark.deep),
        pytest.param("glm4_moe", "f32", 47, marks=pytest.mark.deep),
        pytest.param("glm4_moe", "bf16", 47, marks=pytest.mark.full),
    ],
)
def test_an_engine_has_the_weights_of_each_sync(
    tmp_path: Path, family: str, dtype: str, tensors: int
) -> None:
    """All weights arrive bit for bit, and the last checkpoint has those of the export. In bf16 the
    router of GLM is float32 in the engine."""
    rows = run(tmp_path, "schedule.steps=2", "prompts=8", 'checkpoint.export=hf("export")',
               family=family, dtype=dtype)  # fmt: skip
    assert [row["step"] for row in rows] == [1, 2]
    assert arrived(tmp_path) == [0, 1, 2]
    (proof,) = [each for each in told(tmp_path, "proofs") if each["proof"] == "publications"]
    assert (proof["proved"], proof["tensors"], proof["unproved_tensors"]) == (3, tensors, [])
    exported(tmp_path)


def exported(folder: Path) -> None:
    """Export the last checkpoint, and compare it with the export of the run."""
    from safetensors.torch import load_file

    words = ["export", "run", "--to", "again"]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, again = (
        load_file(folder / f"{name}/model.safetensors") for name in ("run/export", "again")
    )
    assert first.keys() == again.keys()
    for name, value in first.items():
        assert value.dtype == again[name].dtype
        assert value.equal(again[name]), name
