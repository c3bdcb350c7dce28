"""Weights that change on their way are named at the sync that brings them, on every transport.

    forgec run, plant_weights/ on PYTHONPATH --version 2 arrives wrong--> exit code 5, tensor named

On a host with a GPU the run is on it and its weights go through CUDA IPC; FORGE_PEER=1 takes two.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forgedsl.shipped import shipped_root

HERE = Path(__file__).parent
FAULTS = ("not_sent", "stale_buffer", "wrong_shard", "one_bit", "cast_twice", "swapped",
          "sent_twice")  # fmt: skip
SMALL = ("schedule.steps=4", "prompts=8", "held_out.every=100")
ON_GPU = ("--profile", "gpu_tiny", "--set")
WAYS: dict[str, tuple[str, ...]] = {
    "shm": ("--profile", "cpu", "--set"),
    "tcp": ("--profile", "cpu", "--set", "sync.transport=tcp"),
}
if torch.cuda.is_available():
    WAYS = {"ipc": ON_GPU}
if os.environ.get("FORGE_PEER"):
    WAYS = {"peer": (*ON_GPU, "cluster.gpus=2", "trainer.procs=2")}

pytestmark = pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_planted_fault_is_named(way: str, fault: str, tmp_path: Path) -> None:
    done = _run(way, tmp_path, FORGE_PLANT=fault)
    assert done.returncode == 5, done.stdout + done.stderr
    # An old buffer has no new tensor, if the update changed all of them.
    changed = "version 2 of the weights changed on its way"
    nothing = "no tensor of version 2 of the weights arrived"
    told = rf"({changed}|{nothing}) by {way}: model\.\S+ has other values"
    assert re.search(told, done.stdout + done.stderr)
    steps = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(steps[-1])["step"] <= 3


def test_a_reference_of_another_folder_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(shipped_root() / "models/tiny_math", other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= 1.5
    save_file(weights, other / "model.safetensors")
    way = next(iter(WAYS))
    done = _run(way, tmp_path, FORGE_PLANT="another_folder", FORGE_PLANT_FOLDER=str(other))
    assert done.returncode == 5, done.stdout + done.stderr
    assert "service reference could not start: its weights are not those in" in done.stdout
    assert "model.norm.weight has other values in the model" in done.stdout


@pytest.mark.parametrize("way", WAYS)
def test_without_a_fault_nothing_is_said(way: str, tmp_path: Path) -> None:
    done = _run(way, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 5 weight transfers arrived bit for bit" in done.stdout + done.stderr


def _run(way: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | environ | {"FORGE_PLANT_RANK": "1" if way == "peer" else "0"}
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(HERE / "plant_weights"), env.get("PYTHONPATH", "")))
    )
    command = [sys.executable, "-m", "forgedsl", "run", str(shipped_root() / "grpo_math.forge")]
    command += ["--run-dir", str(folder / "run"), *WAYS[way], *SMALL]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=folder, timeout=300)
