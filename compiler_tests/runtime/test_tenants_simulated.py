"""Services of one engine, or of one trainer, in a simulation, in a rehearsal and in a dry run: they
share its time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.service_backend import check_supported

PROGRAM = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
model frozen { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question, target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, lora { rank = 4 }, optimizer { lr = 5e-3 }, batch { seq_len = 64, rows = 4 }
}
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 16 } }
service second : vllm(frozen) { SETTINGS, sampling { max_tokens = 16 } }
reward correct = rl.math_equal
flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  other   = second.sample(prompt, n = 4)
  score   = correct(rollout, prompt.target)
  second_score = correct(other, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  more    = replay(other, adv = rl.group_norm(second_score))
  trainer.step(batch, loss = rl.dapo, more, loss = rl.dapo)
  sync trainer -> generator { weights = adapter }
}
schedule async { steps = 4, max_policy_age = 1 }
"""


COMPARED = (
    PROGRAM[: PROGRAM.index("service second")]
    + """
service reference : titan(policy) { SETTINGS }
reward correct = rl.math_equal
loss near(
  logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool,
) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(0.1 * ratio * rl.k3(logprob, ref) - ratio * adv, mask)
}
flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  ref     = reference.logprobs(rollout)
  score   = correct(rollout, prompt.target)
  batch   = replay(rollout, ref = ref, adv = rl.group_norm(score))
  trainer.step(batch, loss = near)
  sync trainer -> generator
}
schedule async { steps = 4, max_policy_age = 1 }
"""
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, settings in (("shared", "served_by = generator"), ("own", "device = cpu")):
        (tmp_path / f"{name}.forge").write_text(PROGRAM.replace("SETTINGS", settings))
    for name, settings in (("served", "served_by = trainer"), ("apart", "device = cpu")):
        (tmp_path / f"{name}.forge").write_text(COMPARED.replace("SETTINGS", settings))
    return tmp_path


def simulated(file: Path, *more: str) -> dict[str, Any]:
    words = ["sim", str(file), "--steps", "20", "--format", "json", "--host", "cpu", *more]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_simulation_has_one_engine(files: Path) -> None:
    given = ("--assume", "trainer.step=1")  # the engines wait for the trainer
    own, shared = (simulated(files / f"{name}.forge", *given) for name in ("own", "shared"))
    assert own["idle"].keys() == {"trainer", "generator", "second"}
    assert shared["idle"].keys() == {"trainer", "generator"}
    assert shared["idle"]["generator"] < own["idle"]["generator"]


def test_a_simulated_trainer_does_not_train_and_score_at_once(files: Path) -> None:
    """A step takes a second, and so does each call of the reference. All else is quick."""
    slow = ("trainer.token=0", "trainer.step=1", "generator.tokens=1", "generator.decode=0",
            "reference.logprobs=1", "reference.logprobs_token=0")  # fmt: skip
    given = [word for each in slow for word in ("--assume", each)]
    served, apart = (simulated(files / f"{name}.forge", *given) for name in ("served", "apart"))
    together = [each["busy"]["reference"] + 1 / each["step_s"]["mean"] for each in (served, apart)]
    assert together[0] == pytest.approx(1.0, abs=0.05)
    assert together[1] > 1.4


def test_faults_are_of_the_engine(files: Path) -> None:
    words = ["sim", str(files / "shared.forge"), "--host", "cpu"]
    done = CliRunner().invoke(app, [*words, "--inject", "kill:second@step=2"])
    assert done.exit_code != 0
    assert "`second` is not a service here; there is trainer, generator" in done.output


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_rehearsal_has_no_process_for_a_served_reference(files: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", "run", "served.forge", "--stub", "--run-dir", "run"],
        cwd=files, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (files / "run/events.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    started = {e["service"] for e in events if e["kind"] == "process.start"}
    assert "trainer" in started
    assert "reference" not in started
    assert sum(e["kind"] == "step.end" for e in events) == 4


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_rehearsal_has_one_engine(files: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", "run", "shared.forge", "--stub", "--run-dir", "run"],
        cwd=files, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (files / "run/events.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    started = {e["service"] for e in events if e["kind"] == "process.start"}
    assert "generator" in started
    assert "second" not in started
    assert sum(e["kind"] == "step.end" for e in events) == 4
    spans = [span for e in events if e["kind"] == "group" for span in e["spans"]]
    asked = [name for span in spans if span["span"] == "sample" for name in span["service"]]
    assert asked.count("second") == asked.count("generator") >= 64


def test_a_job_that_names_no_engine_is_refused(make_job: Any) -> None:
    mesh = spec.Mesh(name="g", device="cpu")
    judge = spec.VllmService(
        model="m", mesh=mesh, dtype="f32", sampling=spec.Sampling(max_tokens=1), served_by="g"
    )
    for more in ({}, {"g": judge.model_copy(update={"served_by": None})}):
        with pytest.raises(LaunchError, match="judge cannot be served by g"):
            check_supported(make_job(services={"judge": judge, **more}))


def test_a_job_that_names_no_trainer_of_adapters_is_refused(make_job: Any, make_titan: Any) -> None:
    reference = make_titan(trained=False).model_copy(update={"served_by": "trainer"})
    for more in ({}, {"trainer": make_titan()}):
        with pytest.raises(LaunchError, match="reference cannot be served by trainer"):
            check_supported(make_job(services={"reference": reference, **more}))
