"""Code rewards: how cases are divided and judged, and the reward of dapo_code."""

from __future__ import annotations

import asyncio
import json
import re
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
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.rewards.loading import load_reward
from forgedsl_runtime.sandbox import CaseError, Limits, judge, levels

CASES = ["assert double(2) == 4", "assert double(-1) == -2"]
RIGHT = "def double(x):\n    return 2 * x\n"
PROGRAM = (
    RIGHT
    + """
import math
def same(x): return x
def none(x): return None
def count(n): yield from range(n)
def order(items): items.sort()
def sum(items): return 3
class Stack(list):
    def push(self, x): self.append(x); return self
from collections import Counter, namedtuple
from datetime import timedelta
from fractions import Fraction
point = namedtuple('point', 'x y')
limit, names = 7, {'a': 1}
def third(x): return Fraction(x, 3)
def day(d): return d + timedelta(days=1)
def tally(text): return Counter(text)
def fill(m, v):
    for row in m:
        row[:] = [v] * len(row)
def apply(f, x): return f(x)
def first(items): return next(items)
def fail(why): raise ValueError(why)
class Wrong(Exception): pass
def wrong(): raise Wrong(3)
def turned(node):
    last = None
    while node:
        last, node = Node(node.v, last), node.n
    return last
def grow(box): box.size += 1
async def later(x): return x
class Held:
    def __init__(self, value): self.value = value
    def __enter__(self): return self
    def __exit__(self, *error): self.value = None
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)
    def __lt__(self, other): return self.x < other.x
    def __str__(self): return f'<{self.x}, {self.y}>'
    def __len__(self): return 2
    def __contains__(self, v): return v in (self.x, self.y)
ONLY = Vector(0, 0)
def only(): return ONLY
class Bag:
    a = None
    def __init__(self): self.held = {}
    def __getitem__(self, key): return self.held[key]
    def __setitem__(self, key, value): self.held[key] = value
"""
)
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
        "for i in range(3):\n    assert double(i) == 2 * i",
        "assert all(double(i) == 2 * i for i in range(3))",
        "def check(candidate):\n    assert candidate(2) == 4\ncheck(double)",
        "ok = [double(2) == 4, double(3) == 6]\nassert all(ok) and len(ok) == 2",
        "assert type(double(1)) == int and type(double(1.0)) is float",
        "assert double(1 + 2j) == 2 + 4j and isinstance(double(1j), complex)",
        "from decimal import Decimal\nassert double(Decimal('1.10')) == Decimal('2.2')",
        "assert third(1) == Fraction(1, 3) and type(third(1)) is Fraction",
        "from datetime import *\nassert day(date(2024, 2, 28)) == date(2024, 2, 29)",
        "from datetime import *\nt = datetime(2024, 1, 1, tzinfo=timezone.utc)\n"
        "assert same(t) == t",
        "assert tally('aab').most_common(1) == [('a', 2)] and tally('ab') == {'a': 1, 'b': 1}",
        "assert same(range(3)) == range(3) and same(deque([1], 2)).maxlen == 2",
        "m = [[0] * 2 for _ in range(2)]\nrow = m[0]\nfill(m, 3)\nassert row == [3, 3] == m[1]",
        "x = [1]\nx.append(x)\nassert len(same(x)) == 2",
        "assert apply(lambda v: v + 1, 3) == 4 and apply(len, 'abc') == 3",
        "assert list(apply(reversed, [1, 2])) == [2, 1] and first(iter([7, 8])) == 7",
        "try:\n    fail('no')\nexcept ValueError as error:\n    assert str(error) == 'no'\n"
        "else:\n    assert False",
        "try:\n    wrong()\nexcept Wrong as error:\n    assert error.args == (3,)",
        "class Node:\n    def __init__(self, v, n=None):\n        self.v, self.n = v, n\n"
        "head = turned(Node(1, Node(2)))\n"
        "assert isinstance(head, Node) and (head.v, head.n.v) == (2, 1)",
        "from dataclasses import dataclass\n@dataclass\nclass Box:\n    size: int\n"
        "b = Box(1)\ngrow(b)\nassert b == Box(2)",
        "import asyncio\nassert asyncio.run(later(3)) == 3",
        "with Held(5) as held:\n    assert held.value == 5\nassert held.value is None",
        "v = Vector(1, 2) + Vector(3, 4)\nassert v == Vector(4, 6) and v != Vector(1, 1)",
        "assert Vector(1, 2) * 2 == Vector(2, 4) and Vector(1, 2) < Vector(2, 2)",
        "assert str(Vector(1, 2)) == '<1, 2>' and len(Vector(1, 2)) == 2 and 2 in Vector(1, 2)",
        "v = Vector(1, 2)\nassert isinstance(v, Vector) and type(v) is Vector and v.x == 1",
        "assert issubclass(Vector, object) and callable(double) and Vector.__name__ == 'Vector'",
        "assert only() is only() and only() is not Vector(1, 2)",
        "s = Stack()\ns.push(1).push(2)\nassert s == [1, 2] and len(s) == 2 and s[0] == 1",
        "p = point(1, 2)\nassert p.x == 1 and p == (1, 2) and isinstance(p, tuple)",
        "assert limit == 7 and names['a'] == 1",
        "g = count(3)\nassert next(g) == 0 and list(g) == [1, 2]",
        "d = Bag()\nd['a'] = 1\nassert d['a'] == 1 and d.a is None",
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
        "for i in range(3):\n    assert double(i) == 2 * i + i // 2",
        "assert type(double(1)) == float",
        "assert double(1j) == 1j",
        "assert third(1) == Fraction(1, 4)",
        "ok = [double(2) == 4, double(3) == 5]\nassert all(ok)",
        "assert Vector(1, 2) == (1, 2)",
        "fail('no')",
    ],
)
def test_a_wrong_program_fails(case: str) -> None:
    assert judge(PROGRAM, [case]) == [False]


def test_each_case_has_its_verdict_and_a_failure_ends_only_its_case() -> None:
    cases = ["assert none(1) + 1 == 2", *CASES, "assert 1 / none(0) == 1", "assert double(1) == 3"]
    assert judge(PROGRAM, cases) == [False, True, True, False, False]


def test_a_program_cannot_take_a_comparison_over_by_its_names() -> None:
    liar = "def abs(x): return 0\ndef isinstance(*a): return True\ndef double(x): return 7\n"
    cases = ["assert abs(double(2) - 4) < 1e-6", "assert isinstance(double(2), str)"]
    assert judge(liar, cases) == [False, False]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("assert (", "not valid Python: assert ("),
        ("assert await double(1) == 2", "not valid Python"),
        ("double(2) == 4", "a comparison without `assert` tests nothing: double(2) == 4"),
        ("assert (double(2) == 4, 'twice')", "an `assert` of a tuple is always true"),
        ("def check(f):\n    assert f(2) == 4", "`check` has assertions, but no case calls it"),
        (
            "class Test:\n    def test(self):\n        assert double(2) == 4\nTest().test()",
            "assertions in a class are not supported",
        ),
        ("import numpy\nassert double(2) == 4", "a case imports `numpy`; only the standard"),
        (
            "from solution import double\nassert double(2) == 4",
            "names of the program need no",
        ),
        ("assert 2 + 2 == 4", "no case calls the program: assert 2 + 2 == 4"),
        ("import io\nassert double(io.StringIO()) == 4", "a _io.StringIO cannot be passed"),
        ("assert double(2).__eq__(4)", "`__eq__` may return NotImplemented, which counts"),
        ("assert _same(double(2), 4)", "`_same` is a name that the sandbox"),
    ],
)
def test_a_case_that_cannot_be_judged_from_outside_is_a_mistake_of_the_data(
    case: str, reason: str
) -> None:
    with pytest.raises(CaseError, match=re.escape(reason)):
        judge(PROGRAM, [case])


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
    assert judge("while True:\n    pass\n", CASES, limits=Limits(wall=3.0)) == [False, False]


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


@pytest.mark.full
@pytest.mark.timeout(120)
def test_the_reward_pool_scores_programs_in_the_sandbox(tmp_path: Path) -> None:
    from forgedsl_runtime.actors.reward import RewardPool
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

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
    from forgedsl_runtime.services.real_backend import _tell_sandbox

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


@pytest.mark.full
def test_lint_deep_says_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    from forgedsl.cli.lint import main

    main([str(FOLDER / "dapo_code.forge"), "--deep", "--profile", "none", "--ignore", "D608"])
    note = f"note: rewards/sandbox.py: {levels.description()}\n"
    assert note in capsys.readouterr().err
