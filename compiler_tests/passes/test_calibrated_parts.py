"""Other settings predicted from a run in which all completions run together.

Such a run does not show how a decode step depends on the number of sequences, nor on the tokens
before: then the plan's proportions count.
"""

import json
import random
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_calibration import DAPO, lowered

from forgedsl.runs.data import Span
from forgedsl.sim import calibrate
from forgedsl.sim.estimate import from_plan
from forgedsl.sim.fit import multiples
from forgedsl.sim.measure import estimate_of
from forgedsl.sim.scaling import ESTIMATE, expected, scaled
from forgedsl_runtime.sim.simulation import simulate

PLANNED = (2e-3, 2e-5, 1e-4)
STEPS, PROMPT, SYNC = 12, 256, 0.1
ENDS = {"all at the limit": 1e-9, "2 % end early": 2e-5}
"""probability that a completion ends at a token before the limit"""
WAYS = {
    "as planned": (1.1, 1.1, 1.1),
    "more for each step": (1.3, 1.1, 1.0),
    "more for each sequence": (1.0, 1.2, 1.1),
}
"""real times over planned ones: of a decode step, of a sequence in it, of training"""


def test_columns_that_are_proportional_keep_the_proportions_of_the_plan():
    rows = [(1024.0, 1024.0 * 128, 128.0)] * 50
    planned = sum(n * each for n, each in zip(rows[0], PLANNED, strict=True))
    found = multiples(rows, [1.3 * planned] * 50, PLANNED, weight=calibrate.PLAN_WEIGHT)
    assert found == pytest.approx([1.3] * 3, rel=1e-3)


def test_columns_that_differ_are_fitted_nearly_whatever_was_planned():
    rng = random.Random(1)
    rows = [
        (n, n * rng.uniform(2, 200), rng.uniform(0, 900)) for n in rng.choices(range(64), k=400)
    ]
    true = (3.0, 0.5, 2.0)
    values = [
        sum(f * n * each for f, n, each in zip(true, row, PLANNED, strict=True)) for row in rows
    ]
    for weight, rel in ((0.0, 1e-6), (4e-4, 0.1), (calibrate.PLAN_WEIGHT, 0.2)):
        assert multiples(rows, values, PLANNED, weight=weight) == pytest.approx(true, rel=rel)


def test_what_takes_no_time_has_no_factor_below_zero():
    rows = [(1.0, float(n), 0.0) for n in range(9)]
    found = multiples(rows, [5.0 - 0.5 * n for n in range(9)], (1.0, 1.0, 0.0), weight=1e-4)
    assert found[0] > 2.0
    assert found[1:] == [0.0, 0.0]
    assert multiples([(0.0,)], [1.0], (1.0,), weight=0.1) == [1.0]


def made_up(planned, job, size, way, ends):
    """A run on one GPU whose services take turns. The time of a decode step grows with the tokens
    before."""
    engine, titan = planned.engines["generator"], planned.titans["trainer"]
    step, sequence, training = way
    rng, limit = random.Random(3), job.samplers["generator"].sampling.max_tokens
    groups = job.schedule.prompts
    spans = {kind: [] for kind in ("sample", "step", "sync", "score", "logprobs", "eval")}
    rows, now = [], 0.0
    for number in range(STEPS):
        begin, count = now, groups * size
        lengths = [min(limit, 1 + int(rng.expovariate(ends))) for _ in range(count)]
        ended, now = _decoded(engine, lengths, begin + 0.08, step, sequence)
        for i, (length, end) in enumerate(zip(lengths, ended, strict=True)):
            start = begin + 0.03 * i / count
            spans["sample"].append(_span(
                "sample", start, end + 5e-4 * i, service="generator", tokens=length,
                group=number * groups + i // size, engine_start=start, engine_end=end,
            ))  # fmt: skip
        tokens = sum(lengths) + count * PROMPT
        trained = now + training * (titan.step + titan.token * tokens)
        spans["step"].append(_span("step", now, trained, service="trainer", tokens=tokens))
        spans["sync"].append(_span("sync", trained, trained + SYNC, to="generator"))
        now = trained + SYNC
        rows.append({
            "step_s": now - begin, "tokens": tokens, "sequences": count, "groups": groups,
            "response_tokens_mean": statistics.fmean(lengths),
        })  # fmt: skip
    return SimpleNamespace(job=job, rows=rows, spans=spans, ready=(), drops={}, rehearsal=False)


def _span(kind, start, end, **fields):
    return Span(kind=kind, start=start, end=end, fields=fields)


def _decoded(engine, lengths, now, step, sequence):
    """When each completion ends, and when all have; `step` and `sequence` multiply the times."""
    at_length = {}
    for place in range(1, max(lengths) + 1):
        running = sum(length >= place for length in lengths)
        context = PROMPT / engine.siblings + place - engine.context
        each = engine.decode_sequence + engine.decode_context * context
        now += step * engine.decode + sequence * running * each
        at_length[place] = now
    return [at_length[length] for length in lengths], now


def _planned(prompts, size, new, model="0.6B"):
    text = DAPO.replace("draw(16)", f"draw({prompts})").replace("n = 8", f"n = {size}")
    made = lowered(text.replace("0.6B", model), f"generator.sampling.max_tokens={new}")
    return from_plan(made.job, made.graph, made.plan), made.job


@pytest.fixture(scope="module")
def settings():
    return {each: _planned(*each) for each in ((16, 8, 1024), (8, 8, 1024), (16, 8, 512))}


@pytest.mark.cover
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_fewer_prompts_and_shorter_completions_are_predicted(way, ends, settings):
    runs = {
        key: made_up(planned, job, key[1], WAYS[way], ENDS[ends])
        for key, (planned, job) in settings.items()
    }
    base = runs[16, 8, 1024]
    for key, (planned, job) in settings.items():
        found = calibrate.calibrated_on(planned, job, base, Path("run"), simulate)
        told = statistics.fmean(s.seconds for s in simulate(job, found, steps=STEPS).steps[2:])
        took = statistics.fmean(row["step_s"] for row in runs[key].rows[2:])
        assert told == pytest.approx(took, rel=0.01 if key == (16, 8, 1024) else 0.07), key


@pytest.mark.cover
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_a_small_model_tells_how_long_a_large_one_takes(way, ends, settings):
    small, job = settings[16, 8, 1024]
    large, other = _planned(16, 8, 512, "1.7B")
    run = made_up(small, job, 8, WAYS[way], ENDS[ends])
    found = calibrate.calibrated_on(large, other, run, Path("run"), simulate, ran=small)
    told = statistics.fmean(s.seconds for s in simulate(other, found, steps=STEPS).steps[2:])
    rows = made_up(large, other, 8, WAYS[way], ENDS[ends]).rows[2:]
    # a sync takes SYNC here whatever the model is, and twice as long by the two plans
    assert told == pytest.approx(statistics.fmean(row["step_s"] for row in rows), rel=0.1)


def test_a_run_keeps_what_its_plan_expected(tmp_path, settings):
    planned, _ = settings[16, 8, 1024]
    assert expected(planned, tmp_path) is planned  # of an earlier version
    (tmp_path / ESTIMATE).write_text(json.dumps(estimate_of(lowered(DAPO))))
    assert expected(planned, tmp_path) == planned
    unknown = json.loads((tmp_path / ESTIMATE).read_text())
    unknown["latencies"]["titans"]["trainer"]["of_another_version"] = 1.0
    (tmp_path / ESTIMATE).write_text(json.dumps(unknown))
    assert expected(planned, tmp_path) == planned
    other, _ = _planned(16, 8, 1024, "1.7B")
    small, large = planned.titans["trainer"], other.titans["trainer"]
    assert expected(other, tmp_path).titans["trainer"].token == small.token < large.token
    assert scaled(planned, planned, planned) == planned
    moved = scaled(planned, planned, other)
    assert moved.titans["trainer"].token == pytest.approx(large.token)
    assert moved.engines["generator"].decode == pytest.approx(other.engines["generator"].decode)


def test_an_estimate_that_is_not_json_is_named(tmp_path, settings):
    planned, job = settings[16, 8, 1024]
    (tmp_path / "job.json").write_text(job.model_dump_json())
    (tmp_path / "metrics.jsonl").write_text('{"step_s": 1.0}\n' * STEPS)
    (tmp_path / ESTIMATE).write_text("{")
    with pytest.raises(calibrate.CalibrationError, match=r"estimate\.json is not JSON"):
        calibrate.calibrated(planned, job, tmp_path, simulate)
