"""Two draws under one loss, demonstrations under another, on real meshes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tolerance import near

PAGE = Path(__file__).parents[2] / "docs/guide/mixing.md"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_step_sums_two_losses_of_three_batches(tmp_path: Path) -> None:
    text = re.search(r"^```forge mixed.forge\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    assert text is not None
    (tmp_path / "mixed.forge").write_text(text[1], "utf-8")
    command = ["run", "mixed.forge", "schedule.steps=2", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text("utf-8").splitlines()
    for row in map(json.loads, lines):
        parts = row["loss/rl.dapo.loss"] + row["loss/imitate.loss"]
        assert row["loss"] == pytest.approx(parts, **near(torch.float32, 2 * row["groups"]))
        assert row["loss/imitate.loss"] > 0
        assert row["groups"] == 8 + 16 + 1
        assert row["sequences"] > 8 * 4 + 16 * 8
        assert row["age_max"] <= 1
