"""Steps that draw earlier groups again, on real meshes; a resume ends with the same bytes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/guide/replay.md"
FEW = ("schedule.steps=4", "checkpoint.every=2", 'checkpoint.export=hf("out")')


def forgec(*words: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", *words],
        cwd=cwd, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_resumed_run_draws_the_same_groups_and_learns_the_same(tmp_path: Path) -> None:
    text = re.search(r"^```forge replay.forge\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    assert text is not None
    (tmp_path / "replay.forge").write_text(text[1], "utf-8")
    forgec("run", "replay.forge", *FEW, "--run-dir", "run", cwd=tmp_path)
    whole, again = tmp_path / "run", tmp_path / "again"
    assert [row["replay/groups"] > 0 for row in rows(whole)] == [False, True, True, True]
    assert max(row["replay/age_max"] or 0 for row in rows(whole)) <= 3
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints/step-4")
    shutil.rmtree(again / "out")
    forgec("run", "--resume", "again", cwd=tmp_path)
    names = ("loss", "grad_norm", "reward_mean", "replay/age_mean", "replay/held")
    shown = [[[row[name] for name in names] for row in rows(run)] for run in (whole, again)]
    assert shown[0] == shown[1]
    weights = [(run / "out/model.safetensors").read_bytes() for run in (whole, again)]
    assert weights[0] == weights[1]
