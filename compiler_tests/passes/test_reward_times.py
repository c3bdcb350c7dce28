"""Times of rewards: plan and simulator assume the same, and a run's metrics replace it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forge_texts import GRPO, changed, lower_of

from forgedsl.plan.reward_times import scores_text
from forgedsl.runs.data import Span
from forgedsl.sim.estimate import from_plan
from forgedsl.sim.reward_times import reward_seconds

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
    said = scores_text(made.plan.request.program, made.plan.host)
    assert said == f"scores are left out: a call of correct takes {shown} (assumed)"
    seconds = from_plan(made.job, made.graph, made.plan).rewards["correct"].seconds.median
    assert f"{1000 * seconds:g} ms" == shown


def test_a_calibration_replaces_the_assumption(tmp_path: Path) -> None:
    made = lowered(PYTHON, PLAIN, tmp_path)
    known = {"devices": {}, "lengths": {}, "rewards": {"test none": {"correct": 0.2}}}
    plan = replace(made.plan, host=replace(made.plan.host, calibration=known))
    found = from_plan(made.job, made.graph, plan)
    assert found.rewards["correct"].seconds.mean == pytest.approx(0.2)
    assert not any("correct" in note for note in found.notes)
    assert scores_text(plan.request.program, plan.host) == ""


def test_a_run_has_the_longest_call_of_each_step(tmp_path: Path) -> None:
    job = lowered(PYTHON, PLAIN, tmp_path).job
    steps = tuple(Span(kind="step", start=i, end=i + 1, fields={}) for i in range(6))
    scores = tuple(Span(kind="score", start=i, end=i + 1, fields={"node": "score"}) for i in (4, 5))
    rows = [{"reward_s/correct": seconds} for seconds in (9.0, 9.0, 9.0, 0.1, 0.2, 0.3)]
    data: Any = SimpleNamespace(job=job, rows=rows, spans={"step": steps, "score": scores})
    assert reward_seconds(data) == {"test none": {"correct": 0.2}}
