"""Code rewards: how cases are divided and judged, and the reward of dapo_code."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import forgedsl.pipelines
from forgedsl.api import load
from forgedsl.errors import LaunchError
from forgedsl.lower.build import lower
from forgedsl.pipelines.rewards import sandbox
from forgedsl.runtime.items import Prompt, Rollout
from forgedsl.runtime.rewards.loading import load_reward
from forgedsl.runtime.sandbox import CaseError, Limits, judge, levels
from forgedsl.runtime.sandbox.cases import split

CASES = ["assert double(2) == 4", "assert double(-1) == -2"]
RIGHT = "def double(x):\n    return 2 * x\n"
PROGRAM = f"""{RIGHT}
import math
def same(x): return x
def none(x): return None
def count(n): yield from range(n)
def order(items): items.sort()
def sum(items): return 3
class Stack(list):
    def push(self, x): self.append(x); return self
"""
FOLDER = Path(forgedsl.pipelines.__path__[0])


@pytest.mark.parametrize(
    "case",
    [
        "assert double(2) == 4, 'twice'",
        "assert 4 == double(2) > 3",
        "assert double(2) in (3, 4) and not none(1)",
        "assert none(1) is None",
        "assert double(double(1)) == 4",
        "assert double('ab') == 'abab' and double((1,)) == (1, 1)",
        "assert list(count(3)) == [0, 1, 2]",
        "assert len(double('ab')) == 4",
        "assert abs(double(0.1) - 0.2) < 1e-9",
        "import math\nassert math.isclose(double(1 / 3), 2 / 3)",
        "assert math.isclose(double(1 / 3), 2 / 3)",
        "assert isinstance(double(1.0), float)",
        "assert [double(i) for i in range(3)] == [0, 2, 4]",
        "assert all(v > 0 for v in double([1, 2]))",
        "assert sorted(double([1, 2]), key=lambda v: -v) == [2, 2, 1, 1]",
        "x = [3, 1, 2]\norder(x)\nassert x == [1, 2, 3]",
        "x = [2, 1]\nassert order(x) is None\nassert x == [1, 2]",
        "x = 1\nassert same(x) + 0 == x\nx = 2\nassert same(x) + 0 == x",
        "expected = [1, 2]\nassert same([1, 2]) == expected",
        "s = Stack()\ns.push(1).push(2)\nassert s.pop() == 2",
        "y = double(4)\nassert y == 8",
        "def near(a, b):\n    return abs(a - b) < 1e-9\nassert near(double(0.1), 0.2)",
        "assert sum([1, 2]) == 3",
        "assert same({1: {2, None}, 'b': b'x', 'c': float('inf'), 'd': 10 ** 5000}) == "
        "{1: {2, None}, 'b': b'x', 'c': float('inf'), 'd': 10 ** 5000}",
    ],
)
def test_a_right_program_passes(case: str) -> None:
    assert judge(PROGRAM, [case]) == [True]


@pytest.mark.parametrize(
    "case",
    [
        "assert double(2) == 5",
        "assert double(2) != 4",
        "assert none(1) < 3",
        "assert none(1)",
        "assert missing(1) == 1",
        "assert double(2, 3) == 4",
        "assert abs(double(0.1) - 0.3) < 1e-9",
        "assert math.isclose(double(1), 3)",
        "assert all(v > 0 for v in double([1, -2]))",
        "x = [3, 1, 2]\norder(x)\nassert x == [3, 1, 2]",
        "x = 1\nassert same(x) + 0 == x\nx = 2\nassert same(1) + 0 == x",
        "assert sum([1]) == 1",
        "assert same(count(3)) == same(count(3))",
    ],
)
def test_a_wrong_program_fails(case: str) -> None:
    assert judge(PROGRAM, [case]) == [False]


def test_each_case_has_its_verdict_and_a_failure_ends_only_its_case() -> None:
    cases = ["assert none(1) + 1 == 2", *CASES, "assert 1 / none(0) == 1", "assert double(1) == 3"]
    assert judge(PROGRAM, cases) == [False, True, True, False, False]


@pytest.mark.parametrize(
    "case",
    [
        "assert double(271828) == 314159",
        "expected = 314159\nassert double(271828) == expected",
        "import math\nassert math.isclose(double(271828), 314159)",
        "assert math.isclose(double(271828), 314159)",
        "import math\nx = [271828]\nx.append(double(math.pi))\nassert math.isclose(x[0], 314159)",
        "assert abs(double(271828) - 314159) < 1e-3",
        "assert {'a': double(271828)} == {'a': 314159}",
        "assert double(271828) == double(2) == 314159",
        "n = 271828\nm = -n\nassert double(n) == (m, 314159)",
    ],
)
def test_expected_values_stay_outside(case: str) -> None:
    inside = repr(split([case]).steps)
    assert "271828" in inside
    assert "314159" not in inside


def test_a_program_cannot_take_a_comparison_over_by_its_names() -> None:
    liar = "def abs(x): return 0\ndef isinstance(*a): return True\ndef double(x): return 7\n"
    cases = ["assert abs(double(2) - 4) < 1e-6", "assert isinstance(double(2), str)"]
    assert judge(liar, cases) == [False, False]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("for i in range(3): assert double(i) == 2 * i", "inside a block or function"),
        ("assert all(double(i) == 2 * i for i in range(3))", "inside a comprehension"),
        ("assert (", "not valid Python: assert ("),
    ],
)
def test_a_case_that_cannot_be_judged_from_outside_is_a_mistake_of_the_data(
    case: str, reason: str
) -> None:
    with pytest.raises(CaseError, match=reason.replace("(", r"\(")):
        judge(PROGRAM, [case])


def test_statements_go_in_only_where_they_are_needed() -> None:
    plan = split(["import math\nn = 2\nanswer = n + 2\nassert double(n) == answer"])
    assert plan.steps == [("do", "n = 2"), ("value", "double(n)")]
    assert [ast.unparse(part) for _, part in plan.outside][-1] == "_v1 == answer"


# ---- the reward


def test_the_last_block_of_the_answer_is_judged() -> None:
    rollout = SimpleNamespace(response=f"```python\nwrong\n```\nNo:\n```python\n{RIGHT}```")
    assert sandbox.run_unit_tests(rollout, CASES) == 1.0
    assert sandbox.run_unit_tests(SimpleNamespace(response=RIGHT), CASES) == 0.0


@pytest.mark.parametrize(
    "code",
    [
        "def double(x) return 2 * x\n",
        "import sys\nsys.exit(0)\n",
        f"{RIGHT}print('x' * 1000)\nraise SystemExit\n",
        f"{RIGHT}blob = bytearray(1 << 31)\n",
        f"{RIGHT}open('big', 'wb').write(bytes(1 << 24))\n",
        f"{RIGHT}import numpy\n",
    ],
)
def test_a_program_that_does_not_reach_its_end_fails(code: str) -> None:
    assert not any(judge(code, CASES))


def test_an_answer_that_never_ends_is_stopped() -> None:
    assert judge("while True:\n    pass\n", CASES, limits=Limits(wall=0.5)) == [False, False]


def test_printing_is_allowed_and_the_environment_is_bare() -> None:
    code = f"{RIGHT}print('hello')\nimport os\ndef home(): return 'HOME' in os.environ"
    assert judge(code, [*CASES, "assert not home()"]) == [True, True, True]


PROBLEMS = [json.loads(x) for x in (FOLDER / "data/problems.jsonl").read_text().splitlines()]
SOLUTIONS = json.loads((Path(__file__).parent / "problem_solutions.json").read_text())


def _job_in(folder: Path) -> Any:
    """The job of a project's copy of dapo_code, with its files in `folder` as in a run folder."""
    project = folder / "project"
    for name in ("rewards/sandbox.py", "data/problems.jsonl", "prompts/code.txt"):
        (project / name).parent.mkdir(parents=True)
        shutil.copy(FOLDER / name, project / name)
    text = (FOLDER / "dapo_code.forge").read_text()
    (project / "code.forge").write_text(text)
    loaded = load(project / "code.forge", profile="none")
    made = lower(loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=project)
    assert made is not None
    for source, path in made.files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / path)
    assert made.job.rewards["tests"].path == "inputs/rewards/sandbox.py"
    return made.job


def _answer(code: str) -> Rollout:
    prompt = Prompt(group=0, row=0, text="p", token_ids=[1], target=CASES)
    return Rollout(
        group=0, sibling=0, prompt=prompt, token_ids=[1], logprobs=[0.0], mask=[True],
        text=f"```python\n{code}\n```", truncated=False, version_min=0, version_max=0,
        started=0.0, finished=0.0,
    )  # fmt: skip


def test_the_reward_in_a_run_folder_scores_right_and_wrong_programs(tmp_path: Path) -> None:
    reward = _job_in(tmp_path).rewards["tests"]
    assert (reward.procs, reward.timeout, reward.memory) == (8, 20.0, 2 << 30)
    function = load_reward(reward, ModuleType("program"), tmp_path)
    for problem in PROBLEMS:
        right, wrong = SOLUTIONS[problem["question"].split("`")[1].partition("(")[0]]
        scores = [function(_answer(code), problem["test_cases"]) for code in (right, wrong, "")]
        assert scores == [1.0, 0.0, 0.0], problem["question"]


def test_there_are_enough_problems_to_learn_from() -> None:
    assert len(PROBLEMS) == len(SOLUTIONS) == 16
    assert all(problem["question"].startswith("Write `") for problem in PROBLEMS)
    assert all(len(problem["test_cases"]) >= 3 for problem in PROBLEMS)


@pytest.mark.timeout(120)
def test_the_reward_pool_scores_programs_in_the_sandbox(tmp_path: Path) -> None:
    from forgedsl.runtime.actors.reward import RewardPool
    from forgedsl.runtime.upstream.monarch import Mesh, bootstrap

    job = _job_in(tmp_path)
    codes = (RIGHT, "def double(x): return 3", "import os; os._exit(0)", RIGHT)
    rollouts = [_answer(code) for code in codes]

    async def main() -> list[list[Any]]:
        mesh = Mesh.spawn(
            service="rewards", origin="x.forge:1:1", name="rewards", size=1, actor=RewardPool,
            args=(job, ("tests",), str(tmp_path)), kwargs={}, logs=tmp_path / "rewards",
            start=bootstrap({"OMP_NUM_THREADS": "1"}, tmp_path / "rewards", "cpu"),
        )  # fmt: skip
        try:
            await mesh.call("setup")
            return await mesh.one(0, "score", [(("tests",), r, CASES) for r in rollouts])
        finally:
            await mesh.stop()

    assert [[o.value for o in row] for row in asyncio.run(main())] == [[1.0], [0.0], [0.0], [1.0]]


def _emitted(job: Any, folder: Path) -> list[dict[str, Any]]:
    from forgedsl.runtime.services.backing import _tell_sandbox

    found: list[dict[str, Any]] = []
    events = SimpleNamespace(emit=lambda kind, **fields: found.append({"kind": kind, **fields}))
    asyncio.run(_tell_sandbox(SimpleNamespace(job=job, job_dir=folder, events=events)))
    return found


def test_a_run_says_its_level_once_and_refuses_a_weaker_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job_in(tmp_path)
    assert _emitted(job, tmp_path) == [{"kind": "note", "text": levels.description()}]
    assert levels.description().startswith(f"sandbox level {levels.choose()}")
    monkeypatch.setattr(levels, "problem", lambda level: "not permitted")
    with pytest.raises(LaunchError, match="does not offer the sandbox level seccomp"):
        _emitted(job, tmp_path)


def test_lint_deep_says_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    from forgedsl.cli.lint import main

    main([str(FOLDER / "dapo_code.forge"), "--deep", "--profile", "none", "--ignore", "D608"])
    note = f"note: rewards/sandbox.py: {levels.description()}\n"
    assert note in capsys.readouterr().err
