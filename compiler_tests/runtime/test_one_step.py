"""One step of the flagship, for `make check`: services start, an update, an end with code 0.

`make test` leaves it out: test_runs has longer runs of the same services.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FLAGSHIP = Path(__file__).parents[2] / "pipelines/grpo_math.forge"


@pytest.mark.smoke
def test_one_step(tmp_path: Path) -> None:
    words = [
        "run",
        str(FLAGSHIP),
        "schedule.steps=1",
        "held_out.every=100",
        "--run-dir",
        "run",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words, "--profile", "cpu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text("utf-8").splitlines())
    assert row["step"] == 1
    assert 0 < row["grad_norm"] < math.inf
    assert 0 < row["reward_mean"] < 1
