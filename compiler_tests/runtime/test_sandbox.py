"""The sandboxed reward of dapo_code: what passes, and what a policy cannot get away with."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import forgedsl.pipelines
from forgedsl.api import load
from forgedsl.lower.build import lower
from forgedsl.pipelines.rewards import sandbox
from forgedsl.runtime.rewards.loading import load_reward

CASES = ["assert double(2) == 4", "assert double(-1) == -2"]
RIGHT = "def double(x):\n    return 2 * x\n"


def test_the_last_block_of_the_answer_is_judged() -> None:
    rollout = SimpleNamespace(response=f"```python\nwrong\n```\nNo:\n```python\n{RIGHT}```")
    assert sandbox.run_unit_tests(rollout, CASES) == 1.0
    assert sandbox.run_unit_tests(SimpleNamespace(response=RIGHT), CASES) == 0.0


@pytest.mark.parametrize(
    "code",
    [
        "def double(x):\n    return x ** 2\n",
        "def double(x) return 2 * x\n",
        "import sys\nsys.exit(0)\n",
        "import os\nos._exit(0)\n",
        f"{RIGHT}print('x' * 1000)\nraise SystemExit\n",
        f"{RIGHT}blob = bytearray(1 << 31)\n",
        f"{RIGHT}open('big', 'wb').write(bytes(1 << 22))\n",
        f"{RIGHT}import numpy\n",
    ],
)
def test_what_does_not_reach_the_last_case_fails(code: str) -> None:
    assert not sandbox.passes(code, CASES)


def test_an_answer_that_never_ends_is_stopped() -> None:
    assert not sandbox.passes("while True:\n    pass\n", CASES, wall=0.5)


def test_printing_is_allowed_and_the_environment_is_bare() -> None:
    assert sandbox.passes(
        f"{RIGHT}print('hello')\n", [*CASES, "import os", "assert 'HOME' not in os.environ"]
    )


def test_every_shipped_problem_has_cases_that_an_empty_answer_fails() -> None:
    lines = (Path(forgedsl.pipelines.__path__[0]) / "data/problems.jsonl").read_text().splitlines()
    problems = [json.loads(line) for line in lines]
    assert all(problem["question"].startswith("Write `") for problem in problems)
    assert all(len(problem["test_cases"]) >= 3 for problem in problems)
    assert not sandbox.passes("", problems[0]["test_cases"])


def test_the_job_of_dapo_code_calls_it_with_rollout_and_cases() -> None:
    folder = Path(forgedsl.pipelines.__path__[0])
    loaded = load(folder / "dapo_code.forge", profile="none")
    made = lower(loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=folder)
    assert made is not None
    reward = made.job.rewards["tests"]
    assert (reward.procs, reward.timeout, reward.memory) == (8, 20.0, 2 << 30)
    function = load_reward(reward, ModuleType("program"), folder)
    rollout = SimpleNamespace(response=f"```python\n{RIGHT}```")
    assert function(rollout, CASES) == 1.0
    assert function(rollout, [*CASES, "assert double(3) == 5"]) == 0.0
