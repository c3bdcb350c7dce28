"""The notice that a plan asks schedulers for."""

from __future__ import annotations

import json
import re
from pathlib import Path

from forge_commands import CliRunner

from forgedsl.cli.app import app

GRPO = str(Path(__file__).parents[2] / "pipelines/grpo_math.forge")


def built(folder: Path, *words: str) -> tuple[float, int, str]:
    """Seconds that the plan gives the trainer for a step, the job's notice, and the script's."""
    done = CliRunner().invoke(
        app,
        ["build", GRPO, "--profile", "none", "-o", str(folder), "--emit", "plan,job,sbatch",
         "--host", "8xH200", *words],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    stages = json.loads((folder / "plan.json").read_text())["cost"]["stages"]
    job = json.loads((folder / "job.json").read_text())
    steps = {node["name"] for node in job["nodes"] if node["op"] == "step"}
    (seconds,) = [stage["seconds"] for stage in stages if stage["node"] in steps]
    asked = re.search(r"B:TERM@(\d+)", (folder / "job.sbatch").read_text())
    assert asked is not None
    return seconds, job["checkpoint"]["grace_s"], asked[1]


def test_a_long_step_and_a_large_checkpoint_have_longer(tmp_path: Path) -> None:
    seconds, grace, script = built(tmp_path, "prompts=2048")
    assert seconds > 100
    assert script == str(grace)
    assert 1.5 * seconds < grace < 1.5 * seconds + 60


def test_what_is_set_is_taken(tmp_path: Path) -> None:
    assert built(tmp_path, "checkpoint.grace=45s")[1:] == (45, "45")
