"""Rows of reasoning-gym as a run reads them, and its scores."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.data import made_rows
from forgedsl_runtime.data.sources import Source, open_source
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.rewards.loading import load_reward
from forgedsl_runtime.rewards.process import RewardProcess
from forgedsl_runtime.rewards.worker import Recipe

pytestmark = pytest.mark.skipif(  # importing it takes seconds
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)

UNSTABLE = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")
"""tasks whose problems depend on the hash seed of the process"""


def opened(task: str, **given: Any) -> Source:
    made = spec.ReasoningGymSource(task=task, **({"size": 20, "seed": 7} | given))
    return open_source(made, shuffle=None, streaming=False, job_dir=Path("."))


def rows(source: Source, count: int) -> list[Any]:
    return [source.row_at(position)[1] for position in range(count)]


def rollout(row: Any, text: str) -> Rollout:
    prompt = Prompt(group=0, row=0, text="q", token_ids=[1], target=None)
    prompt.columns = {"entry": row["entry"]}
    return Rollout(
        group=0, sibling=0, prompt=prompt, token_ids=[1], logprobs=[0.0], mask=[True], text=text,
        truncated=False, version_min=0, version_max=0, started=0.0, finished=0.0,
    )  # fmt: skip


def scores(names: dict[str, bool], items: list[tuple[Any, str]]) -> list[list[Any]]:
    """Outcomes of a reward process: for each (row, answer), of the rewards, by their `whole`."""
    rewards = {
        name: spec.Reward(
            kind="std", function="reasoning_gym", args={"whole": whole},
            inputs={"entry": "column entry"},
        )
        for name, whole in names.items()
    }  # fmt: skip

    async def call() -> list[Any]:
        process = RewardProcess(Recipe(rewards=rewards, program="", job_dir="."))
        try:
            given = [((*names,), rollout(row, text), None) for row, text in items]
            return [await process.call(item) for item in given]
        finally:
            process.close()

    return asyncio.run(call())


def test_rows_are_those_of_the_package_as_json() -> None:
    source = opened("leg_counting", options={"min_animals": 2, "max_animals": 2})
    assert source.num_rows == 20
    first, second = rows(source, 2)
    assert re.search(r"if you have \d+ [\w ]+, \d+ [\w ]+\?", first["question"])
    assert first["answer"] == str(first["metadata"]["total_legs"])
    assert first["metadata"]["difficulty"]["num_animals"] == [2, 2]
    assert first["question"] != second["question"]
    assert (source.place(1), source.row_at(21)) == ("leg_counting row 1", (1, second))


def test_row_n_has_the_seed_of_the_source_plus_n() -> None:
    """Rule D604 compares sources by this."""
    early, late = opened("gcd", seed=7), opened("gcd", seed=9)
    assert [r["question"] for r in rows(early, 5)[2:]] == [r["question"] for r in rows(late, 3)]


def test_rows_are_the_same_in_every_process_and_are_scored_there() -> None:
    """The order of a set of texts depends on the hash seed, which is fixed for this."""
    script = f"""
import json
from pathlib import Path
from forgedsl.lower import job as spec
from forgedsl_runtime.data.sources import open_source
for task in {UNSTABLE!r}:
    made = spec.ReasoningGymSource(task=task, size=20, seed=7)
    source = open_source(made, shuffle=None, streaming=False, job_dir=Path("."))
    print(json.dumps([source.row_at(position)[1] for position in range(4)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "17"},
    )  # fmt: skip
    there = [json.loads(line) for line in done.stdout.splitlines()]
    assert there == [rows(opened(task), 4) for task in UNSTABLE]
    items = [(row, f"<answer>{row['answer']}</answer>") for each in there for row in each[:2]]
    found = scores({"right": False}, items)
    assert [(outcome.value, outcome.error) for (outcome,) in found] == [(1.0, "")] * len(items)


def test_the_last_tag_is_the_answer_and_a_whole_answer_only_if_asked_for() -> None:
    (row,) = rows(opened("chain_sum", options={"max_terms": 2, "max_digits": 1}), 1)
    right, wrong = row["answer"], str(int(row["answer"]) + 1)
    texts = [
        f"<answer>{wrong}</answer> no: <answer>\n{right} </answer>",
        f"<answer>{right}</answer><answer>{wrong}</answer>",
        f" {right}\n", wrong, "", "<answer>", f"<answer>{right}",
    ]  # fmt: skip
    found = scores({"tag": False, "whole": True}, [(row, text) for text in texts])
    values = [[outcome.value for outcome in each] for each in found]
    assert [outcome.error for each in found for outcome in each] == [""] * 14
    assert [tag == 1.0 for tag, _ in values] == [True, False, False, False, False, False, False]
    assert [whole == 1.0 for _, whole in values] == [True, False, True, False, False, False, False]


def test_a_task_scores_by_its_own_configuration() -> None:
    """Points of time_intervals fall with the distance, relative to `max_time_difference_seconds`;
    of countdown, any expression that gives the number counts."""
    (row,) = rows(opened("countdown", options={"min_numbers": 3, "max_numbers": 3}), 1)
    expression = row["metadata"]["expression"]
    turned = f"({expression}) + 0 * 1"
    found = scores({"r": True}, [(row, f"({expression})"), (row, turned), (row, "1 + 1")])
    first, second, third = (outcome.value for (outcome,) in found)
    assert first == 1.0
    assert second < 1.0  # numbers that were not given
    assert third < 1.0


def test_a_problem_of_another_version_is_an_error_and_no_score() -> None:
    (row,) = rows(opened("gcd"), 1)
    other = {"entry": row["entry"] | {"sha256": "0" * 16}}
    (((outcome,)),) = scores({"r": True}, [(other, "1")])
    assert outcome.value is None
    assert "another version of reasoning-gym" in outcome.error


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"task": "no_such_task"}, "reasoning-gym has no task no_such_task"),
        ({"options": {"min_animals": 50}}, "max_animals must be >= min_animals"),
        ({"options": {"animals": 2}}, "unexpected keyword argument 'animals'"),
        ({"options": {"min_animals": "two"}}, "refuses min_animals"),
    ],
)
def test_what_the_package_refuses_ends_a_run_before_it_starts(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(LaunchError, match=re.escape(told)):
        opened(**({"task": "leg_counting"} | given))


def test_the_process_that_makes_rows_is_started_again() -> None:
    source = opened("gcd")
    before = rows(source, 3)
    maker = made_rows._maker()
    assert maker._process is not None
    os.kill(maker._process.pid, signal.SIGKILL)
    maker._process.wait()
    assert rows(source, 3) == before


def test_without_the_package_a_run_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hidden = "raise ImportError('hidden')"
    (tmp_path / "reasoning_gym.py").write_text(hidden, "utf-8")
    monkeypatch.setattr(made_rows, "CODE", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
                        + made_rows.CODE)  # fmt: skip
    maker = made_rows._Maker()
    monkeypatch.setattr(made_rows, "_maker", lambda: maker)
    with pytest.raises(LaunchError, match=re.escape('pip install "forgedsl[reasoning-gym]"')):
        opened("gcd")
    monkeypatch.setitem(sys.modules, "forgedsl.reasoning_gym", None)
    reward = spec.Reward(kind="std", function="reasoning_gym", args={"whole": False})
    with pytest.raises(LaunchError, match="reasoning_gym"):
        load_reward(reward, ModuleType("program"), tmp_path)


@pytest.mark.full
def test_every_task_makes_rows_that_score_their_own_answers() -> None:
    from forgedsl.hir.reasoning_gym_registry import COMPOSITE, tasks

    slow = {"knight_swap", "sokoban"}  # seconds for a problem
    names = sorted({*(tasks() or ())} - slow - {COMPOSITE})
    made = {name: rows(opened(name, size=2), 1)[0] for name in names}
    open_ = {name for name, row in made.items() if row["answer"] is None}  # many are right
    closed = [name for name in made if name not in open_]
    answers = [(made[name], f"<answer>{made[name]['answer']}</answer>") for name in closed]
    found = dict(zip(closed, scores({"r": False}, answers), strict=True))
    failed = {name: outcome.error for name, (outcome,) in found.items() if outcome.error}
    wrong = {name: outcome.value for name, (outcome,) in found.items() if outcome.value != 1.0}
    assert (failed, wrong) == ({}, {})
    assert len(open_) < 8
