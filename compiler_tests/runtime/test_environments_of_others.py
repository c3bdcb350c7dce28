"""The recipes of docs/guide/environments-of-others.md, with TextArena and a server of OpenEnv as
they come from the package index, each in an environment of its own (frameworks/install.py)."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from forgedsl.environment import Task, Turn
from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

sys.path.insert(0, str(Path(__file__).parents[1] / "deep/frameworks"))
from install import LINE, folder, is_installed, packages
from serving import serving

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:python|forge) (\S+)\n(.*?)^```$", re.S | re.M)
BLOCKS = dict(BLOCK.findall((ROOT / "docs/guide/environments-of-others.md").read_text("utf-8")))
SHIPPED = ROOT / "pipelines"
CODE = {"arena": "arena", "openenv": "openenv_client"}
SERVER = """
import sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Said(Action):
    message: str


class Seen(Observation):
    message: str


class Count(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **given):
        self.secret, self.turns = seed % 10, 0
        return Seen(message="a digit?", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **given):
        self.turns += 1
        right = str(self.secret) in action.message
        said = "yes" if right else "no"
        return Seen(message=said, done=right or self.turns == 3, reward=float(right))

    @property
    def state(self):
        return State(step_count=self.turns)


app = create_fastapi_app(Count, Said, Seen, max_concurrent_envs=160)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""
TRAINED = (
    'policy.source=local("forgedsl:models/tiny_math")', "policy.arch=auto", "policy.dtype=f32",
    "policy.context=256", "trainer.device=cpu", "trainer.batch.seq_len=250",
    "trainer.batch.rows=16", "generator.device=cpu", "generator.sampling.max_tokens=12",
    "games.prompt=row.question", "schedule.steps=3",
)  # fmt: skip


def needs(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"no framework {name}: {LINE} {name}")


def recipe(name: str) -> str:
    """The code of a recipe; TextArena is found in its own environment."""
    return (
        found(BLOCKS[f"envs/{CODE[name]}.py"])
        if name == "arena"
        else BLOCKS[f"envs/{CODE[name]}.py"]
    )


def found(text: str) -> str:
    """Code that finds TextArena."""
    where = f"import sys\nsys.path.append({str(packages('textarena'))!r})\n"
    future = "from __future__ import annotations\n"
    before, mark, after = text.partition(future)
    return f"{before}{mark}{where}{after}" if mark else where + text


def trained(
    where: Path, name: str, *words: str, url: str = "http://127.0.0.1:8000"
) -> list[dict[str, Any]]:
    """Train a recipe for three steps with a tiny model; return the metrics."""
    (where / "envs").mkdir()
    (where / f"envs/{CODE[name]}.py").write_text(recipe(name), "utf-8")
    text = re.sub(r"max_turns = \d+", "max_turns = 3", BLOCKS[f"{name}.forge"])
    text = text.replace("http://127.0.0.1:8000", url)
    (where / f"{name}.forge").write_text(text, "utf-8")
    return ran(where, name, *TRAINED, *words)


def shipped(where: Path, name: str, *words: str) -> list[dict[str, Any]]:
    """Train a file of pipelines/ for three steps; return the metrics."""
    (where / "environments").mkdir()
    code = (SHIPPED / f"environments/{CODE[name]}.py").read_text("utf-8")
    (where / f"environments/{CODE[name]}.py").write_text(
        found(code) if name == "arena" else code, "utf-8"
    )
    text = (SHIPPED / f"{name}.forge").read_text("utf-8")
    text = text.replace('local("', 'local("forgedsl:').replace('jsonl("', 'jsonl("forgedsl:')
    (where / f"{name}.forge").write_text(text, "utf-8")
    return ran(where, name, "schedule.steps=3", "held_out.limit=8", "prompts=4", *words)


def ran(where: Path, name: str, *words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "run", f"{name}.forge", "--run-dir", "run",
         *words],
        cwd=where, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " failed:" not in done.stdout + done.stderr
    return [json.loads(line) for line in (where / "run/metrics.jsonl").read_text().splitlines()]


PLAY = """
import asyncio, json, sys
from random import Random
from forgedsl.environment import Task, Turn

names = {}
exec(sys.stdin.read(), names)

async def play(seed):
    game = names["Arena"]()
    said = [(await game.reset(Task(text=""), Random(seed))).observation]
    steps = [await game.step(Turn(text="no move"))]
    for number in range(1, 21):
        steps.append(await game.step(Turn(text=f"I say [{number}]")))
        if steps[-1].done:
            break
    return said + [step.observation for step in steps], dict(steps[-1].rewards)

print(json.dumps([asyncio.run(play(seed)) for seed in range(8)]))
"""


def test_a_game_of_textarena_is_played_and_gives_its_reward() -> None:
    needs("textarena")
    done = subprocess.run(
        [sys.executable, "-c", PLAY], input=recipe("arena"), capture_output=True, text=True,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    games = json.loads(done.stdout)
    for said, rewards in games:
        assert "between 1 and 20" in said[0]
        assert "invalid move" in said[1]
        assert all("between 1 and 20" not in text for text in said[1:])  # only what is new
        assert all("I say" not in text for text in said)
        assert rewards["reward"] <= 1.0
    assert any(rewards == {"reward": 1, "invalid": 0.0} for _, rewards in games)
    assert any(rewards["reward"] < 1 for _, rewards in games)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_game_of_textarena_trains_for_three_steps(tmp_path: Path) -> None:
    needs("textarena")
    steps = trained(tmp_path, "arena", "game.max_observation=64")
    assert [step["step"] for step in steps] == [1, 2, 3]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_file_of_textarena_in_pipelines_trains(tmp_path: Path) -> None:
    needs("textarena")
    steps = shipped(tmp_path, "arena")
    assert [step["step"] for step in steps] == [1, 2, 3]


@pytest.mark.parametrize("name", CODE)
def test_the_file_in_pipelines_has_the_class_of_the_guide(name: str) -> None:
    _, mark, body = BLOCKS[f"envs/{CODE[name]}.py"].partition("\nclass ")
    code = (SHIPPED / f"environments/{CODE[name]}.py").read_text("utf-8")
    assert mark + body.rstrip() in code


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    script = tmp_path / "server.py"
    script.write_text(SERVER, "utf-8")
    with openenv(script) as url:
        yield url


def openenv(script: Path) -> AbstractContextManager[str]:
    """Run a server of OpenEnv; give its address."""
    needs("openenv")
    interpreter = str(folder("openenv") / "bin/python")
    return serving(lambda port: [interpreter, str(script), str(port)], page="schema")


def test_sessions_of_openenv_are_played_side_by_side(server: str) -> None:
    names: dict[str, Any] = {}
    exec(recipe("openenv"), names)

    async def play(seed: int) -> tuple[str, list[tuple[str, dict[str, float], bool]]]:
        game = names["OpenEnv"](url=server)
        try:
            start = await game.reset(Task(text=""), Random(seed))
            secret = Random(seed).getrandbits(31) % 10
            turns = [str((secret + 1) % 10), f"it is {secret}"]
            steps = [await game.step(Turn(text=text)) for text in turns]
        finally:
            await game.close()
        return start.observation, [(s.observation, dict(s.rewards), s.done) for s in steps]

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(play, range(16)))

    wanted = (
        "\na digit?\n",
        [("\nno\n", {"reward": 0.0}, False), ("\nyes\n", {"reward": 1.0}, True)],
    )
    assert asyncio.run(all_of_them()) == [wanted] * 16


def test_a_request_that_openenv_refuses_is_a_failure(server: str) -> None:
    names: dict[str, Any] = {}
    exec(recipe("openenv"), names)

    async def play() -> None:
        game = names["OpenEnv"](url=server, field="no_such_field")
        try:
            await game.reset(Task(text=""), Random(1))
            await game.step(Turn(text="1"))
        finally:
            await game.close()

    with pytest.raises(RuntimeError, match="OpenEnv: "):
        asyncio.run(play())


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_environment_of_openenv_trains_for_three_steps(server: str, tmp_path: Path) -> None:
    steps = trained(tmp_path, "openenv", "server.max_observation=16", url=server)
    assert [step["step"] for step in steps] == [1, 2, 3]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_file_of_openenv_in_pipelines_trains(tmp_path: Path) -> None:
    with openenv(SHIPPED / "environments/openenv_server.py") as url:
        steps = shipped(tmp_path, "openenv", f'url="{url}"')
    assert [step["step"] for step in steps] == [1, 2, 3]


def test_wrong_names_of_the_files_are_told_with_the_nearest_right_one() -> None:
    """Without the packages: lint reads the classes and imports none."""
    for name, old, new, said, near in (
        ("arena", "arena.Digits(", "arena.Digit(", "`arena` has no environment `Digit`", "Digits"),
        ("arena", "(game =", "(gam =", "`Digits` has no parameter `gam`", "game"),
        ("arena", "r.rewards.reward", "r.rewards.rewrd", "a reward part `rewrd`", "reward"),
        ("openenv", "(url =", "(ulr =", "`Plain` has no parameter `ulr`", "url"),
    ):
        text = (SHIPPED / f"{name}.forge").read_text("utf-8")
        source = SourceFile(f"{name}.forge", text.replace(old, new, 1))
        (finding,) = lint_source(source, SHIPPED, on_disk=True).diagnostics
        assert said in finding.message
        assert f"did you mean `{near}`?" in (finding.help or "")
