"""A calibrated simulation of a run has the run's median and its mean step."""

import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgedsl.lower.job import Sampling, VllmService
from forgedsl.runs.data import Span
from forgedsl.sim.assume import AssumptionError, assume
from forgedsl.sim.calibrate import FIRST, _fit_step_times, _limited
from forgedsl.sim.latency import Engine, Latencies, Titan, at_longest, step_seconds
from forgedsl.sim.values import Dist, constant, quantiles

STALLS = (1.0,) * 60 + (3.0,) * 4
"""steps of the trainer, over what is usual"""


def latencies(spread):
    titan = Titan(step=0.1, token=0.0, spread=quantiles(spread))
    return Latencies(engines={}, titans={"t": titan}, rewards={}, filters={}, data={})


def simulate(job, found, *, steps):
    """Whatever a step of the trainer has above the usual makes others wait for all of it."""
    seconds = [step_seconds(found.titans["t"], 0, turn, 100) for turn in range(steps)]
    return SimpleNamespace(settled=[SimpleNamespace(seconds=each) for each in seconds])


@pytest.mark.parametrize("passed_on", [1.0, 0.5, 0.0], ids=["all", "half", "nothing"])
def test_as_much_of_the_spread_as_the_steps_show(passed_on):
    took = [0.4 * (1 + passed_on * (stall - 1)) for stall in STALLS]
    rows = [{"step_s": each} for each in (9.0,) * FIRST + tuple(took)]
    job = SimpleNamespace(schedule=SimpleNamespace(steps=None, mode="sync"))
    data = SimpleNamespace(rows=rows, job=job)
    made = _fit_step_times(latencies(STALLS), data, Path("run"), simulate)
    seconds = [step.seconds for step in simulate(job, made, steps=64).settled]
    assert statistics.median(seconds) == pytest.approx(statistics.median(took))
    assert statistics.fmean(seconds) == pytest.approx(statistics.fmean(took), rel=0.04)


def test_a_run_whose_steps_are_alike_has_no_spread():
    rows = [{"step_s": 0.4}] * 40
    schedule = SimpleNamespace(steps=None, mode="sync")
    data = SimpleNamespace(rows=rows, job=SimpleNamespace(schedule=schedule))
    made = _fit_step_times(latencies((1.0,) * 8), data, Path("run"), simulate)
    assert set(made.titans["t"].spread.points) == {1.0}
    assert made.titans["t"].step == pytest.approx(0.4)


def sampled(limit, *, env=None):
    """A job that samples completions of at most `limit` tokens, or plays of an environment."""
    service = VllmService.model_construct(sampling=Sampling(max_tokens=limit))
    nodes = [SimpleNamespace(target="g", env=env)]
    return SimpleNamespace(samplers={"g": service}, nodes=nodes)


def ran(job, lengths, *, cut):
    """A run of this job; those of `cut` tokens were truncated."""
    spans = [
        Span(kind="sample", start=i, end=i + 1,
             fields={"service": "g", "tokens": n, "truncated": n == cut})
        for i, n in enumerate(lengths, 9)
    ]  # fmt: skip
    steps = [Span(kind="step", start=i, end=i + 1, fields={}) for i in range(9)]
    return SimpleNamespace(job=job, spans={"sample": spans, "step": steps})


def measured(lengths):
    engine = Engine(
        tokens=lengths, prompt=constant(8.0), decode=0.01, decode_sequence=0.0, prefill=0.0,
        max_running=8, load=0.0, start=0.0,
    )  # fmt: skip
    return Latencies(engines={"g": engine}, titans={}, rewards={}, filters={}, data={})


LENGTHS = [4.0, 9.0, 16.0, 16.0]


@pytest.mark.parametrize(
    ("most", "longest", "told"), [(6, 6.0, False), (16, 16.0, False), (32, 16.0, True)]
)
def test_completions_end_where_the_predicted_job_ends_them(most, longest, told):
    run = ran(sampled(16), LENGTHS, cut=16.0)
    limited = _limited(measured(quantiles(LENGTHS)), sampled(most), run)
    assert limited.engines["g"].tokens.points[-1] == longest
    note = (
        "lengths of g above 16 tokens are unknown: 50% of the run's completions reached this limit"
    )
    assert (limited.notes == (note,)) is told
    longer = at_longest(limited)
    if told:  # those that were cut may go on to the limit of the job
        assert longer.engines["g"].tokens.points[0] == 4.0
        assert longer.engines["g"].tokens.points[-1] == most
        assert longer.engines["g"].tokens.mean > limited.engines["g"].tokens.mean
        assert at_longest(assume(limited, ["g.tokens=20"])) is None
        with pytest.raises(AssumptionError, match="`g` has no `longest`"):
            assume(limited, ["g.longest=20"])
    else:
        assert longer is None


def test_where_nothing_was_truncated_all_lengths_are_known():
    run = ran(sampled(16), LENGTHS, cut=0.0)
    limited = _limited(measured(quantiles(LENGTHS)), sampled(32), run)
    assert limited.notes == ()
    assert at_longest(limited) is None


def test_completions_that_the_context_ended_do_not_reach_the_limit():
    run = ran(sampled(16), [4.0, 9.0, 9.0], cut=9.0)
    limited = _limited(measured(quantiles([4.0, 9.0, 9.0])), sampled(32), run)
    assert limited.notes == ()
    assert at_longest(limited) is None


def test_the_limit_of_a_completion_is_none_of_a_trajectory():
    lengths = quantiles([40.0, 90.0])
    run = ran(sampled(16, env="game"), [40.0, 90.0], cut=90.0)
    limited = _limited(measured(lengths), sampled(32, env="game"), run)
    assert limited.engines["g"].tokens == lengths
    assert limited.notes == ()


def test_an_engine_that_the_run_did_not_sample_from_keeps_its_lengths():
    known = Dist(median=200.0, sigma=0.7)
    assert _limited(measured(known), sampled(32), ran(sampled(16), [], cut=0.0)) == measured(known)


def test_few_steps_have_the_mean_of_the_spread():
    titan = latencies(STALLS).titans["t"]
    seconds = [step_seconds(titan, 5, turn, 0) for turn in range(32)]
    assert statistics.fmean(seconds) == pytest.approx(0.1 * titan.spread.mean, rel=0.05)
