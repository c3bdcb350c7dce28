"""Adapters in whole runs: one that begins with the adapter of another run, one that sends its
adapter alone, and one in which a part of the adapter does not arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forgedsl.shipped import shipped_root

SMALL = ("schedule.steps=1", "prompts=4", "held_out.every=100", "checkpoint.every=1")


def forgec(folder: Path, *words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "forgedsl", *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
def test_a_run_begins_with_the_adapter_of_another(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    file = str(shipped_root() / "grpo_math.forge")
    run = ("run", file, "--profile", "cpu", "--run-dir")
    lora = ("trainer.lora.rank=4", "trainer.optimizer.lr=5e-3")
    forgec(tmp_path, *run, "first", "--set", *SMALL, *lora)
    forgec(tmp_path, "export", "first", "--adapter", "--to", "adapter")
    forgec(tmp_path, "export", "first", "--to", "merged")
    chosen = f'policy.adapter=local("{tmp_path / "adapter"}")'
    said = forgec(tmp_path, *run, "second", "--set", *SMALL, *lora, chosen)
    # two publications, and the frozen reference against its folder
    assert "all 2 weight transfers arrived bit for bit" in said
    begun = load_file(tmp_path / "second/models/policy/model.safetensors")
    exported = load_file(tmp_path / "merged/model.safetensors")
    assert begun.keys() == exported.keys()
    for name, value in exported.items():
        torch.testing.assert_close(begun[name], value, rtol=1e-6, atol=1e-6)
    alone = subprocess.run(
        [sys.executable, "-m", "forgedsl", "export", "second", "--adapter", "--to", "alone"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert alone.returncode != 0
    assert "began with an adapter merged into its base" in alone.stdout + alone.stderr


def alone(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `forgec run` with these words; the trainer sends its adapter alone."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    command = [sys.executable, "-m", "forgedsl", "run", *words]
    return subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=400, check=False
    )


FILE = (str(shipped_root() / "grpo_math.forge"), "--profile", "cpu", "--run-dir", "run", "--set")
ALONE = ("sync.weights=adapter", "trainer.lora.rank=4", "trainer.optimizer.lr=5e-3", *SMALL)


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_run_that_sends_its_adapter_alone_goes_on_and_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    begun = alone(tmp_path, *FILE, *ALONE)
    assert begun.returncode == 0, begun.stdout + begun.stderr
    said = " ".join(begun.stdout.split())
    assert "all 2 weight transfers arrived bit for bit (42 tensors)" in said
    assert "generator adds the adapter to the trainer's base weights, bit for bit" in said
    again = [word.replace("--run-dir", "--resume") for word in FILE]
    resumed = alone(tmp_path, *again, *ALONE, "schedule.steps=3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows][-1] == 3
    gaps = [row["gap/age_0"] for row in rows if "gap/age_0" in row]
    assert gaps
    assert max(gaps) < 1e-5
    changed = [row["sync_changed/generator"] for row in rows if "sync_changed/generator" in row]
    assert changed
    assert min(changed) > 0.5
    lines = (tmp_path / "run/proofs.jsonl").read_text().splitlines()
    bases = [each for each in map(json.loads, lines) if each["proof"] == "base"]
    assert [(each["tensors"], each["holds"]) for each in bases] == [(35, True)] * 2
    forgec(tmp_path, "export", "run", "--adapter", "--to", "adapter")
    forgec(tmp_path, "export", "run", "--to", "merged")
    merged = load_file(tmp_path / "merged/model.safetensors")
    base = load_file(shipped_root() / "models/tiny_math/model.safetensors")
    halves = load_file(tmp_path / "adapter/adapter_model.safetensors")
    layer = "model.layers.0.self_attn.q_proj"
    a, b = (halves[f"base_model.model.{layer}.lora_{half}.weight"] for half in "AB")
    wanted = base[f"{layer}.weight"] + 32 / 4 * (b @ a)
    torch.testing.assert_close(merged[f"{layer}.weight"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_part_of_an_adapter_that_does_not_arrive_ends_the_run(tmp_path: Path) -> None:
    """In version 2, one matrix has the values of the version before."""
    pytest.importorskip("vllm")
    planted = str(Path(__file__).parents[1] / "deep/plant_weights")
    done = alone(
        tmp_path, *FILE, *ALONE, "schedule.steps=4", FORGE_PLANT="not_sent", PYTHONPATH=planted
    )
    assert done.returncode == 5, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "version 2 of the weights changed on its way by shm: model.layers." in said
    assert "lora_A.weight has other values in the engine" in said
