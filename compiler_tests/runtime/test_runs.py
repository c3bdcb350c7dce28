"""Whole runs on real meshes, as a user starts them: `forgec run ...` in a process of its own.

Each run is a few steps of the shipped model on CPU. What they show together: another loss trains
with nothing else changed, a pipeline of one's own runs through the same executor, a job.json needs
no source, a run resumes where it was, and ends in order when it is interrupted or loses a process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgedsl.runs.packed import unpacked

PIPELINES = Path(__file__).parents[2] / "pipelines"
SMALL = ("prompts=4", "held_out.limit=8")
pytestmark = pytest.mark.timeout(300)

OWN = """
forge 1
import "std/rl" as rl
import python "my_rewards.py" as mine

model policy { source = local("models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("data/arithmetic.jsonl")
  prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, gpus = 0, optimizer.lr = 1e-4, batch { seq_len = 64, rows = 64 }
}
service generator : vllm(policy) {
  device = cpu, gpus = 0, sampling { max_tokens = 16 }
}
service frozen : titan(policy) { device = cpu, gpus = 0 }

reward correct = rl.math_equal(tolerance = 1e-6)
reward short(prompt: str, response: str, target: str) -> f32 = mine.short { timeout = 5s }
rubric both { score = 0.8 * correct + 0.2 * short, on_truncated = 0.0, on_error = drop }

filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0

loss kl_pg(
  logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool,
) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-ratio * adv + 0.01 * ratio * rl.k3(logprob, ref), mask)
  report mean_ratio = token_mean(ratio, mask)
}

flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 8)
  score   = both(rollout, prompt.target)
  kept    = rollout.keep(mixed(score))
  ref_lp  = frozen.logprobs(kept)
  batch   = replay(kept, ref = ref_lp, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = kl_pg)
  sync trainer -> generator
}
schedule async { steps = 3, max_policy_age = 1, starve_timeout = 2min }
"""

REWARD = """
def short(prompt, response, target):
    assert prompt.endswith("=") and target.isdigit(), (prompt, target)
    return 1.0 if len(response) < 60 else 0.0
"""


def forgec(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run forgec to its end; its output in the failure message."""
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def start(*args: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Run forgec in a session of its own, so that a signal reaches it as Ctrl-C does."""
    with (cwd / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "forgedsl.cli.main", *args],
            cwd=cwd,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: Callable[[], Any], seconds: float) -> Any:
    """What `what` returns once it is true. A condition of another process: polled."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of grpo_math with its loss body replaced."""
    folder = tmp_path_factory.mktemp("first")
    text = (PIPELINES / "grpo_math.forge").read_text()
    begin, end = text.index("  ratio = exp("), text.index("}\n\nflow train")
    body = """  drift = clamp(logprob - behavior, -5.0, 5.0)
  minimize token_mean(-stop(exp(drift)) * adv * logprob + beta * rl.k2(logprob, ref), mask)
  report mean_drift = token_mean(drift, mask)
"""
    for name in ("models", "data"):
        shutil.copytree(PIPELINES / name, folder / name)
    (folder / "other.forge").write_text(text[:begin] + body + text[end:])
    done = forgec("run", "other.forge", "--run-dir", "run", "schedule.steps=3", *SMALL, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("profile cpu was selected automatically")
    return folder / "run"


def test_another_loss_trains_with_its_own_reports(first_run: Path) -> None:
    found = rows(first_run / "metrics.jsonl")
    assert [row["step"] for row in found] == [1, 2, 3]
    assert all(abs(row["loss/mean_drift"]) < 1.0 and row["grad_norm"] > 0 for row in found)
    assert not any("loss/clip_frac" in row for row in found)
    assert found[0]["eval_version/held_out"] == 0
    assert found[2]["eval/held_out"] is not None
    contract = (
        "policy_version reward_mean reward_std loss entropy tokens tokens_per_s age_max age_mean "
        "step_s wall_s"
    )
    assert all(row[name] is not None for row in found for name in contract.split())


def test_events_name_every_process_and_its_upstream_classes(first_run: Path) -> None:
    events = rows(first_run / "events.jsonl")
    started = [event for event in events if event["kind"] == "process.start"]
    assert {event["actor"] for event in started} == {
        "TitanTrainer", "ReferenceModel", "Generator", "RewardPool",
    }  # fmt: skip
    for event in started:
        assert event["pid"] > 0
        assert event["mesh"]
        assert event["rank"] == 0
        assert set(event["versions"]) == {"torch", "vllm", "torchtitan", "monarch"}
    classes = {name: c for event in started for name, c in event["classes"].items()}
    assert set(classes) == {
        "model", "parallelize", "optimizer", "scheduler", "checkpoint", "engine",
    }  # fmt: skip
    assert all(c.startswith(("torchtitan.", "vllm.")) for c in classes.values())
    events = list(unpacked(events))
    for kind in ("sample", "score", "step", "sync"):
        ends = [event for event in events if event["kind"] == f"{kind}.end"]
        assert ends
        assert len(ends) == sum(event["kind"] == f"{kind}.start" for event in events)
    assert any(event["running"] > 0 for event in events if event["kind"] == "sample.end")


@pytest.mark.deep
def test_job_json_runs_in_an_empty_folder(first_run: Path, tmp_path: Path) -> None:
    shutil.copytree(first_run / "inputs", tmp_path / "there" / "inputs")
    shutil.copy(first_run / "job.json", tmp_path / "there")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = forgec("run", "../there/job.json", "--run-dir", "again", cwd=empty)
    assert done.returncode == 0, done.stdout + done.stderr
    again, before = rows(empty / "again/metrics.jsonl"), rows(first_run / "metrics.jsonl")
    assert len(again) == 3
    # the first batch has one policy version, so it repeats
    assert again[0]["reward_mean"] == pytest.approx(before[0]["reward_mean"], abs=0.02)
    job = (empty / "again/job.json").read_text()
    assert str(tmp_path) not in job
    assert str(Path.home()) not in job


def test_resume_continues_with_the_next_step(first_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(first_run, run)
    shutil.copytree(first_run.parent, tmp_path / "source")
    done = forgec(
        "run", "source/other.forge", "--resume", "run", "schedule.steps=5", *SMALL, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(run / "metrics.jsonl")
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5]
    assert [row["policy_version"] for row in found] == [1, 2, 3, 4, 5]
    ends = [event for event in rows(run / "events.jsonl") if event["kind"] == "step.end"]
    drawn = [group for event in ends for group in event["groups"]]
    assert len(drawn) == len(set(drawn)), "a group was trained on twice"


@pytest.mark.full
def test_own_pipeline_with_python_reward_filter_and_reference(tmp_path: Path) -> None:
    for name in ("models", "data"):
        (tmp_path / name).symlink_to(PIPELINES / name)
    (tmp_path / "own.forge").write_text(OWN)
    (tmp_path / "my_rewards.py").write_text(REWARD)
    linted = forgec("lint", "own.forge", cwd=tmp_path)
    assert linted.returncode == 0, linted.stdout
    done = forgec("run", "own.forge", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in found] == [1, 2, 3]
    assert all(0.5 < row["loss/mean_ratio"] < 2.0 and row["reward/short"] == 1.0 for row in found)
    started = [e for e in rows(tmp_path / "run/events.jsonl") if e["kind"] == "process.start"]
    assert {e["mesh"] for e in started} >= {"trainer", "generator", "frozen", "reward_short"}


@pytest.mark.full
def test_interrupt_leaves_a_checkpoint_and_no_process(tmp_path: Path) -> None:
    process = start(
        "run", str(PIPELINES / "grpo_math.forge"), "--run-dir", "run", *SMALL, cwd=tmp_path
    )
    wait_for(lambda: rows(tmp_path / "run/metrics.jsonl"), 150)
    pids = [e["pid"] for e in rows(tmp_path / "run/events.jsonl") if e["kind"] == "process.start"]
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(15) == 130, (tmp_path / "output.txt").read_text()
    assert list(tmp_path.glob("run/checkpoints/step-*/controller.json"))
    assert (tmp_path / "run/report.html").exists()
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.full
def test_a_killed_generator_is_started_again_and_every_group_is_trained_on(tmp_path: Path) -> None:
    process = start(
        "run", str(PIPELINES / "grpo_math.forge"), "--run-dir", "run", *SMALL,
        "schedule.steps=12", cwd=tmp_path,
    )  # fmt: skip
    wait_for(lambda: rows(tmp_path / "run/metrics.jsonl"), 150)
    events = rows(tmp_path / "run/events.jsonl")
    pids = {e["service"]: e["pid"] for e in events if e["kind"] == "process.start"}
    os.kill(pids["generator"], signal.SIGKILL)
    assert process.wait(120) == 0, (tmp_path / "output.txt").read_text()
    events = rows(tmp_path / "run/events.jsonl")
    (lost,) = [e for e in events if e["kind"] == "service.lost"]
    assert (lost["service"], lost["mesh"]) == ("generator", "gen")
    assert "it is restarted" in (tmp_path / "output.txt").read_text()
    steps = [e for e in events if e["kind"] == "step.end"]
    assert [e["step"] for e in steps] == list(range(1, 13))
    groups = [group for e in steps for group in e["groups"]]
    assert groups == list(range(48)), "in order, none lost and none twice"
    assert all(e["age_max"] <= 1 for e in events if e["kind"] == "metrics")
    every = [e["pid"] for e in events if e["kind"] == "process.start"]
    assert not [pid for pid in every if alive(pid)]
