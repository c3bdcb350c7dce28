"""Times of rewards: plan and simulator assume the same, and a run's metrics replace it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forge_texts import GRPO, changed, lower_of

from forgedsl.plan.cost import Cost, plan_cost
from forgedsl.plan.plan import Plan
from forgedsl.plan.text import render_plan, scoring_text
from forgedsl.runs.data import Span
from forgedsl.sim.estimate import from_plan
from forgedsl.sim.measure import compare
from forgedsl.sim.reward_times import reward_seconds
from forgedsl.types.flow import Role

PYTHON = changed(
    GRPO,
    ("forge 1\n", 'forge 1\nimport python "grade.py" as grade\n'),
    ("= rl.math_equal(tolerance = 1e-6)", "= grade.score"),
)
PLAIN = "def score(prompt, response, target):\n    return 1.0\n"
CASES = [
    (PLAIN, "grade.score", "1 ms"),
    (f"async {PLAIN}", "grade.score", "50 ms"),
    (PLAIN, "grade.score { effects = [exec] }", "50 ms"),
]


def lowered(text: str, source: str, folder: Path) -> Any:
    (folder / "grade.py").write_text(source)
    found, diagnostics = lower_of(text, folder=folder)
    assert found is not None, diagnostics
    return found


@pytest.mark.parametrize(("source", "written", "shown"), CASES)
def test_plan_and_simulator_assume_the_same(
    source: str, written: str, shown: str, tmp_path: Path
) -> None:
    made = lowered(changed(PYTHON, ("= grade.score", f"= {written}")), source, tmp_path)
    (scoring,) = made.plan.cost.scorings
    assert f" calls of correct x {shown} (assumed) in 1 process" in scoring_text(scoring)
    seconds = from_plan(made.job, made.graph, made.plan).rewards["correct"].seconds.median
    assert f"{1000 * seconds:g} ms" == shown


def test_a_calibration_replaces_the_assumption(tmp_path: Path) -> None:
    made = lowered(PYTHON, PLAIN, tmp_path)
    plan, cost = calibrated(made, 0.2)
    found = from_plan(made.job, made.graph, plan)
    assert found.rewards["correct"].seconds.mean == pytest.approx(0.2)
    assert not any("correct" in note for note in found.notes)
    assert scoring_text(cost.scorings[0]) == (
        "128 calls of correct x 200 ms (measured) in 1 process take 25.6 s"
    )


def calibrated(made: Any, seconds: float) -> tuple[Plan, Cost]:
    """A plan for a host on which a call was measured, and its cost."""
    known = {"devices": {}, "lengths": {}, "rewards": {"test none": {"correct": seconds}}}
    host = replace(made.plan.host, calibration=known)
    request = replace(made.plan.request, host=host)
    plan = replace(made.plan, host=host, request=request)
    cost = plan_cost(request, made.graph, plan.schedule, plan.colocate, plan.memory.ranks)
    return replace(plan, cost=cost), cost


def test_an_assumed_time_changes_no_step(tmp_path: Path) -> None:
    text = changed(PYTHON, ("= grade.score", "= grade.score { effects = [exec] }"))
    made = lowered(text, PLAIN, tmp_path)
    cost = made.plan.cost
    (scoring,) = cost.scorings
    assert (scoring.calls, cost.slowest_reward) == (128, None)
    assert cost.step_seconds == replace(cost, scorings=()).step_seconds
    more = "    if so, a step takes longer: give it more `correct.procs`, or measure it "
    for calls, told in ((1, False), (10**6, True)):
        shown = replace(cost, scorings=(replace(scoring, calls=calls),))
        lines = page(made, shown)
        assert len([line for line in lines if line.endswith(", left out")]) == 1
        assert (f"{more}(forgec calibrate)" in lines) is told


@pytest.mark.parametrize("procs", [1, 4])
def test_a_step_takes_as_long_as_the_measured_calls(procs: int, tmp_path: Path) -> None:
    text = changed(PYTHON, ("= grade.score", f"= grade.score {{ procs = {procs} }}"))
    made = lowered(text, PLAIN, tmp_path)
    quick, slow = (replace(calibrated(made, s)[1], lag=100) for s in (1e-6, 600.0))
    calls = 128 * 600.0 / procs
    assert quick.slowest_reward is None
    assert quick.step_seconds < slow.step_seconds == pytest.approx(calls)
    assert "  bottleneck: the calls of correct; give it more `correct.procs`" in page(made, slow)


def test_in_a_synchronous_schedule_calls_last_longer_than_sampling(tmp_path: Path) -> None:
    made = lowered(PYTHON, PLAIN, tmp_path)
    turns = [replace(calibrated(made, s)[1], overlapped=False) for s in (1e-6, 1.0, 600.0)]
    quick, middle, slow = turns
    sampled = sum(stage.seconds for stage in quick.stages if Role.SAMPLES in stage.roles)
    assert sampled < 128.0
    assert quick.step_seconds == pytest.approx(sum(stage.seconds for stage in quick.stages))
    for cost, calls in ((middle, 128.0), (slow, 128 * 600.0)):
        assert cost.step_seconds == pytest.approx(quick.step_seconds + calls - sampled)
    assert "  bottleneck: the calls of correct; give it more `correct.procs`" in page(made, slow)


def page(made: Any, cost: Cost) -> list[str]:
    """The lines of a plan's page with this cost."""
    plan = replace(made.plan, cost=cost)
    return render_plan(made.plan.request.program, made.graph, plan, summary=["test"],
                       identity="").splitlines()  # fmt: skip


def test_a_calibration_by_a_run_of_slow_rewards_blames_them_alone() -> None:
    """Not the devices: a step of 12.8 s is 128 calls of 0.1 s in one process."""
    stage = {"node": "rollout", "op": "sample", "service": "generator", "lane": "generator",
             "tokens": 1000, "seconds": 2.0, "kind": "cpu", "key": "sample"}  # fmt: skip
    scores = [{"reward": "correct", "calls": 128, "procs": 1, "at_once": 1}]
    estimate = {"name": "test none", "overlapped": True, "lag": 100, "stages": [stage],
                "scores": scores}  # fmt: skip
    found = compare(estimate, {"rollout": (2.0, 1000)}, {"correct": 0.1}, took=12.8, run="slow")
    assert found.known["devices"]["cpu"]["times"] == {"sample": 1.0}
    assert found.after == pytest.approx(12.8)
    del estimate["scores"]  # of an earlier version
    found = compare(estimate, {"rollout": (2.0, 1000)}, {"correct": 0.1}, took=12.8, run="slow")
    assert found.known["devices"]["cpu"]["times"] == {"sample": 6.4}


def test_a_run_has_the_longest_call_of_each_step(tmp_path: Path) -> None:
    job = lowered(PYTHON, PLAIN, tmp_path).job
    steps = tuple(Span(kind="step", start=i, end=i + 1, fields={}) for i in range(6))
    scores = tuple(Span(kind="score", start=i, end=i + 1, fields={"node": "score"}) for i in (4, 5))
    rows = [{"reward_s/correct": seconds} for seconds in (9.0, 9.0, 9.0, 0.1, 0.2, 0.3)]
    data: Any = SimpleNamespace(job=job, rows=rows, spans={"step": steps, "score": scores})
    assert reward_seconds(data) == {"test none": {"correct": 0.2}}
