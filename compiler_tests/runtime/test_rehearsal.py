"""Rehearsals on real meshes, as a user starts them: marked as such, and living through faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.sim.latency import Reward
from forgedsl.sim.values import constant
from forgedsl_runtime.actors.stub_actors import StubRewards

PIPELINE = Path(__file__).parents[2] / "pipelines/grpo_math.forge"
QUICK = (
    "--profile", "cluster", "beta=0.0", "prompts=4", "group=4", "generator.replicas=3",
    "held_out.limit=4", "schedule.steps=12",
    "--assume", "generator.tokens=lognormal(20, 0.6)", "--assume", "generator.load=0.05",
    "--assume", "trainer.publish=0.05", "--assume", "generator.start=11",
)  # fmt: skip
pytestmark = pytest.mark.timeout(300)


def stub(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forgedsl.cli.main", "run", "--stub", str(PIPELINE), *args]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full
def test_the_cluster_profile_is_rehearsed_and_lives_through_the_death_of_a_replica(tmp_path):
    done = stub(tmp_path, *QUICK, "--inject", "kill:generator[1]@step=3")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("REHEARSAL: no model is loaded")
    assert "\nrehearses grpo_math (profile cluster) in real time: 12 steps\n" in done.stderr
    assert done.stdout.startswith("REHEARSAL, nothing was trained")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("rehearsal-grpo_math-")
    assert "no model was loaded" in (folder / "rehearsal.json").read_text()
    assert '<p class="rehearsal"' in (folder / "report.html").read_text()
    events, metrics = rows(folder / "events.jsonl"), rows(folder / "metrics.jsonl")
    (lost,) = [e for e in events if e["kind"] == "service.lost"]
    assert lost["mesh"] == "gen1"
    groups = [group for e in events if e["kind"] == "step.end" for group in e["groups"]]
    assert sorted(groups) == list(range(48))
    assert all(row["rehearsal"] and row["age_max"] <= 1 for row in metrics)
    dead = ("groups_dead", "dead_group_fraction")
    learned = ("loss", "grad_norm", "entropy", "reward_mean", "eval/held_out", *dead)
    assert {row[name] for row in metrics for name in learned} == {None}
    assert [row["step"] for row in metrics] == list(range(1, 13))
    again = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "run", "--resume", str(folder)],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (again.returncode, "is a rehearsal" in again.stderr) == (2, True)


@pytest.mark.full
def test_the_death_of_a_trainer_ends_a_rehearsal_by_name(tmp_path):
    done = stub(tmp_path, *QUICK, "--inject", "kill:trainer@step=2")
    assert done.returncode == 5
    assert "service trainer failed" in done.stdout
    assert "grpo_math.forge:28:" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--assume", "generator.speed=2"), "`generator` has no `speed`; there is tokens"),
        (("--assume", "generater.load=2"), "did you mean `generator`?"),
        (("--inject", "kill:generator[9]"), "`generator` has 8 replicas, but no [9]"),
        (("--inject", "burn:generator"), "is not a fault; write kill:SERVICE[REPLICA]@step=5"),
        (("--resume", "there"), "--stub cannot be combined"),
    ],
)
def test_what_cannot_be_rehearsed_is_said(tmp_path, args, said):
    done = stub(tmp_path, "--profile", "cluster", *args)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_process_of_rewards_remembers_no_more_rollouts_the_longer_it_runs():
    pool = StubRewards.__new__(StubRewards)
    pool._rewards, pool._factors = {"right": Reward(seconds=constant(0.1))}, {}
    pool._seed, pool._tries = 0, Counter()
    for group in range(3 * 4096):
        pool._seconds("right", SimpleNamespace(group=group, sibling=0))
    assert len(pool._tries) == 4096
