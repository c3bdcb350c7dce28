"""A run begins with the adapter that another run exported, and has the weights of its export."""

from __future__ import annotations

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
