"""Faults planted into publications between GPU processes are named, each at once, by CUDA IPC, peer
memory and NCCL; right publications give no alarm. In whole runs: test_planted_weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "planted_on_gpus.py"
GPUS = {"ipc": 1, "peer": 2, "nccl": 2, "shm": 0, "gloo": 0}
TENSORS = 35
NAMED = {
    "not_sent": 1, "wrong_shard": 1, "one_bit": 1, "cast_twice": 1, "swapped": 2, "sent_twice": 1,
}  # fmt: skip
"""by fault: how many tensors are named; a stale buffer is told below"""

pytestmark = pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1")


@pytest.mark.parametrize("way", GPUS)
def test_faults_are_named_and_right_publications_are_silent(way: str, tmp_path: Path) -> None:
    if torch.cuda.device_count() < GPUS[way]:
        pytest.skip(f"needs {GPUS[way]} GPU")
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), way], capture_output=True, text=True,
        timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.split("RESULT")[1].splitlines()[0])
    assert len(found["start"]["faults"]) == TENSORS
    assert found["first"] == {"faults": [], "proved": TENSORS}
    for fault, number in NAMED.items():
        assert len(found[fault]["faults"]) == number, found[fault]
        assert found[f"after {fault}"] == {"faults": [], "proved": TENSORS}
    assert found["stale_buffer"]["faults"]
    assert found["after stale_buffer"]["proved"] == TENSORS
    assert found["alarms"]["alarms"] == 0
