"""What a run took is what plans estimate by; the measured steps of docs/benchmarks.md."""

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from forge_commands import CliRunner
from forge_texts import GRPO, changed, loaded

from forgedsl.cli.app import app
from forgedsl.lower.build import lower
from forgedsl.runs.data import Span
from forgedsl.sim.calibrate import CalibrationError
from forgedsl.sim.estimate import from_plan
from forgedsl.sim.measure import compare, cost_of, estimate_of, figures, measure
from forgedsl.sizes.hosts import Host

H200 = Host(gpus=1, gpu="H200")
EIGHT = Host(gpus=8, gpu="H200")
DAPO = """forge 1
import "std/rl" as rl
model policy { source = hf("Qwen/Qwen3-0.6B"), arch = qwen3("0.6B"), context = 4096 }
dataset texts {
  source = hf("a/b", split = "train")
  prompt = row.question, target = row.answer, max_prompt_tokens = 256
}
service trainer : titan(policy) { batch { seq_len = 1280, rows = 16 } }
service generator : vllm(policy) { sampling.max_tokens = 1024 }
colocate = [trainer, generator]
reward correct = rl.math_equal(tolerance = 1e-6)
flow train {
  prompt  = texts.draw(16)
  rollout = generator.sample(prompt, n = 8)
  score   = correct(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule sync { steps = 8 }
"""
SEEN = {"rollout": (4.31, 131_000.0), "step": (1.49, 181_000.0), "sync": (0.1, 0.0)}
TOOK = 6.02
"""docs/benchmarks.md, the whole step on one H200: seconds and tokens; seconds of a step"""
OVERLAPPED = changed(GRPO, ("procs = 4, optimizer", "procs = 2, optimizer"))
ASYNC = [
    ("beta=0.0",),
    ("beta=0.0", "generator.replicas=1"),
    ("beta=0.0", "generator.replicas=4", "generator.parallel.tp=1", "schedule.max_policy_age=2"),
    ("beta=0.0", "schedule.max_policy_age=3"),
    ("beta=0.0", "generator.engine.max_running=40"),
    ("beta=0.0", "trainer.batch.rows=1", "generator.sampling.max_tokens=256"),
]
ALONE = {
    (): 1.35 / 155_390,
    ("policy.context=16384", "trainer.batch.seq_len=16384", "trainer.batch.rows=2",
     "trainer.memory.activation_checkpoint=selective", "generator.engine.gpu_memory=0.2",
     "generator.sampling.max_tokens=15900"): 1 / 51_600,
}  # fmt: skip
"""docs/benchmarks.md, the trainer alone: seconds a token, short texts and 16k"""


def lowered(text, *overrides, host=H200):
    found = loaded(text, *overrides, host=host)
    made = lower(found.program, reporter=found.reporter, sources=found.sources,
                 base_dir=Path(), host=host)  # fmt: skip
    assert made is not None, list(found.reporter)
    return made


def calibrated(*, lengths=True):
    found = compare(estimate_of(lowered(DAPO)), SEEN, took=TOOK, run="bench")
    known = {**found.known, **({} if lengths else {"lengths": {}})}
    return replace(H200, calibration=known)


def test_the_measured_step_is_predicted_once_it_was_measured():
    before, after = (lowered(DAPO, host=h).plan.cost.step_seconds for h in (H200, calibrated()))
    assert before == pytest.approx(TOOK, rel=0.15)
    assert after == pytest.approx(TOOK, rel=0.01)


@pytest.mark.parametrize("overrides", ALONE)
def test_the_trainer_alone_is_predicted_from_the_whole_step(overrides):
    made = lowered(DAPO, *overrides, host=calibrated(lengths=False))
    step = next(s for s in made.plan.cost.stages if s.node == "step")
    assert step.seconds / step.tokens == pytest.approx(ALONE[overrides], rel=0.25)


def test_the_simulator_estimates_by_it_too():
    jobs = lowered(DAPO), lowered(DAPO, host=calibrated(lengths=False))
    plain, known = (from_plan(made.job, made.graph, made.plan) for made in jobs)
    ratios = [
        known.engines["generator"].decode / plain.engines["generator"].decode,
        known.titans["trainer"].token / plain.titans["trainer"].token,
    ]
    times = calibrated().calibration["devices"]["H200"]["times"]
    assert ratios == pytest.approx([times["sample"], times["step"]])


def test_what_stages_do_not_show_is_made_up_for_by_all():
    estimate = estimate_of(lowered(DAPO))
    times = [compare(estimate, SEEN, took=took, run="x").known["devices"]["H200"]["times"]["sample"]
             for took in (7.55, 15.1)]  # fmt: skip
    assert times[1] == pytest.approx(2 * times[0], rel=1e-3)


def test_an_estimate_knows_no_calibration():
    assert estimate_of(lowered(DAPO)) == estimate_of(lowered(DAPO, host=calibrated()))


def as_planned(estimate, times=None):
    """Return the figures of a run whose stages take `times` as long as planned, and its step."""
    cost = cost_of(estimate, times or {}, {})
    step = cost.step_seconds
    return {s.node: (cost.work(s, step), float(s.tokens)) for s in cost.stages}, step


def replanned(overrides, found):
    host = replace(EIGHT, calibration=found.known)
    return lowered(OVERLAPPED, *overrides, host=host).plan.cost.step_seconds


@pytest.mark.parametrize("overrides", ASYNC)
def test_a_run_as_planned_changes_no_plan(overrides):
    plan = lowered(OVERLAPPED, *overrides, host=EIGHT)
    seen, step = as_planned(estimate_of(plan))
    found = compare(estimate_of(plan), seen, took=step, run="x")
    assert step == found.before == pytest.approx(plan.plan.cost.step_seconds)
    assert set(found.known["devices"]["H200"]["times"].values()) == {1.0}
    assert found.after == replanned(overrides, found) == pytest.approx(step)


@pytest.mark.parametrize("overrides", ASYNC)
def test_the_calibrated_plan_takes_the_measured_step(overrides):
    estimate = estimate_of(lowered(OVERLAPPED, *overrides, host=EIGHT))
    stages = {stage["key"]: (stage["kind"], stage["key"]) for stage in estimate["stages"]}
    seen, step = as_planned(estimate, {stages["sample"]: 1.4, stages["step"]: 0.8})
    found = compare(estimate, seen, took=1.1 * step, run="x")
    assert found.after == pytest.approx(1.1 * step, rel=2e-3)
    assert replanned(overrides, found) == pytest.approx(1.1 * step, rel=2e-3)


def random_estimate(rng):
    """An estimate of random times: a sampler, a frozen model, a trainer and a sync."""

    def stage(node, lane, **more):
        return {"node": node, "op": node, "service": lane, "lane": lane, "kind": "H200",
                "key": node, "tokens": 1000, "seconds": rng.uniform(0.1, 5.0), **more}  # fmt: skip

    batches = rng.choice([1.0, 1.0, 1.7, 2.0, 3.0, 4.0])
    sample = stage("sample", "generator", batches=batches)
    latency = sample["seconds"] * batches * rng.uniform(1.0, 1.2)
    sample |= {"latency": latency, "alone": rng.uniform(sample["seconds"], latency)}
    frozen = stage("logprobs", rng.choice(["reference", "trainer"]))
    stages = [sample, frozen, stage("step", "trainer"), stage("sync", "generator", tokens=0)]
    return {"name": "x", "overlapped": rng.random() < 0.8, "lag": rng.randint(1, 3),
            "stages": stages}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_any_run_as_planned_has_factors_of_one(seed, packed):
    """`packed`: an engine is busy only as long as at full width."""
    estimate = random_estimate(random.Random(seed))
    seen, step = as_planned(estimate)
    if packed:
        seen |= {s["node"]: (s["seconds"], s["tokens"]) for s in estimate["stages"]}
    found = compare(estimate, seen, took=step, run="x")
    assert set(found.known["devices"]["H200"]["times"].values()) == {1.0}
    assert found.after == pytest.approx(step)


@pytest.mark.parametrize("seed", range(60))
def test_any_measured_step_is_what_the_calibrated_plan_takes(seed):
    rng = random.Random(seed)
    estimate = random_estimate(rng)
    factors = {("H200", s["key"]): rng.uniform(0.5, 2.0) for s in estimate["stages"]}
    seen, step = as_planned(estimate, factors)
    found = compare(estimate, seen, took=step, run="x")
    assert found.after == pytest.approx(step, rel=2e-3)


def test_busy_seconds_of_an_engine_with_one_batch_at_a_time_are_its_own():
    estimate = estimate_of(lowered(DAPO))
    seen = {
        node: (2 * seconds, tokens) for node, (seconds, tokens) in as_planned(estimate)[0].items()
    }
    found = compare(estimate, seen, took=2 * as_planned(estimate)[1], run="x")
    assert set(found.known["devices"]["H200"]["times"].values()) == {2.0}


@pytest.mark.parametrize(("overlapped", "readable"), [(True, False), (False, True)])
def test_estimates_of_earlier_versions(tmp_path, monkeypatch, overlapped, readable):
    estimate = random_estimate(random.Random(0)) | {"overlapped": overlapped}
    del estimate["lag"]
    for stage in estimate["stages"]:
        for key in ("latency", "alone", "batches"):
            stage.pop(key, None)
    (tmp_path / "estimate.json").write_text(json.dumps(estimate))
    job = SimpleNamespace(name="test", profile=None, rewards={})
    data = SimpleNamespace(rows=[{"tokens": 40, "step_s": 2.0}] * 12, spans={}, job=job)
    monkeypatch.setattr("forgedsl.sim.measure.usable_run", lambda folder: data)
    seen, _ = as_planned(estimate)
    monkeypatch.setattr("forgedsl.sim.measure.figures", lambda estimate, data: seen)
    if readable:
        assert measure(tmp_path).after == pytest.approx(2.0, rel=2e-3)
    else:
        with pytest.raises(CalibrationError, match="earlier version"):
            measure(tmp_path)


def test_figures_are_busy_times_of_a_step():
    def span(kind, start, end, **fields):
        return Span(kind=kind, start=start, end=end, fields=fields)

    steps = [span("step", float(i), i + 0.5, service="trainer") for i in range(7)]
    samples = [span("sample", i, i + 1, service="generator", engine_start=i, engine_end=i + 0.25,
                    tokens=10) for i in range(3, 7) for _ in range(2)]  # fmt: skip
    samples.append(span("sample", 3, 9, service="generator", eval="held", tokens=99))
    data = SimpleNamespace(rows=[{"tokens": 40}] * 7, spans={"step": steps, "sample": samples,
                                                             "sync": []})  # fmt: skip
    found = figures(estimate_of(lowered(DAPO)), data)
    assert found == {"rollout": (0.25, 20.0), "step": (0.5, 40.0)}


def test_plans_say_what_they_rest_on(tmp_path, monkeypatch):
    (tmp_path / "cal.json").write_text(json.dumps(calibrated().calibration))
    (tmp_path / "test.forge").write_text(DAPO)
    monkeypatch.setenv("FORGE_CALIBRATION", str(tmp_path / "cal.json"))
    page = (
        CliRunner().invoke(app, ["plan", str(tmp_path / "test.forge"), "--host", "1xH200"]).stdout
    )
    assert "calibrated: H200 by run bench of 2" in page
    assert "about 6.02 s a step" in page


def test_a_run_that_cannot_be_learned_from_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path), "-o", str(tmp_path / "x.json")])
    assert result.exit_code == 2
    assert "is not a run folder" in result.stderr


def test_a_file_that_is_no_calibration_is_named(tmp_path, monkeypatch):
    (tmp_path / "cal.json").write_text("[]")
    (tmp_path / "test.forge").write_text(DAPO)
    monkeypatch.setenv("FORGE_CALIBRATION", str(tmp_path / "cal.json"))
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "test.forge")])
    assert result.exit_code == 2
    assert "cal.json is not a calibration file" in result.stderr
