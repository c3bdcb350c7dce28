"""Environments of gymnasium, played as text in a process of environments."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from forgedsl.environment import Start, Step, Task, Turn
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.environments.process import EnvironmentProcess
from forgedsl_runtime.environments.worker import Request, ServedEnvironment, load

pytest.importorskip("gymnasium")

from forgedsl.gymnasium import Gymnasium

MAZE = """
import gymnasium
import hidden
from gymnasium import spaces


class Maze(gymnasium.Env):
    observation_space = spaces.Dict({"room": spaces.MultiDiscrete([9, 9]), "said": spaces.Text(80)})
    action_space = spaces.Text(4, charset="news")

    def __init__(self, doors=2, render_mode=None):
        self.doors = doors

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room = self.np_random.integers(9, size=2)
        return {"room": self.room, "said": "hello"}, {}

    def step(self, action):
        solved = action == hidden.WAY
        return {"room": self.room, "said": "no"}, float(solved), solved, False, {}


gymnasium.register("Maze-v0", entry_point="maze:Maze", max_episode_steps=5)
"""


def played(game: Gymnasium, *answers: str, seed: int = 0) -> list[Any]:
    steps = [game.step(Turn(text=text)) for text in answers]
    return [(str(step.observation), dict(step.rewards), step.done) for step in steps]


def begun(game: Gymnasium, seed: int = 0) -> str:
    return str(game.reset(Task(text="q"), Random(seed)).observation)


def test_a_lake_is_shown_as_it_prints_itself_and_the_player_is_in_brackets() -> None:
    lake = Gymnasium(id="FrozenLake-v1", options={"is_slippery": False, "desc": ["SFH", "FFG"]})
    assert begun(lake) == "[S]FH\nFFG"
    assert played(lake, "left is wrong; <answer>down</answer>", " RIGHT ") == [
        ("  (Down)\nSFH\n[F]FG", {"reward": 0.0}, False),
        ("  (Right)\nSFH\nF[F]G", {"reward": 0.0}, False),
    ]
    (said, given, done), (_, won, end) = played(lake, "jump", "right")
    assert "`jump` is no action; actions are: left, down, right, up" in said
    assert (given, done, won, end) == ({"invalid": 1.0}, False, {"reward": 1.0}, True)


def test_passenger_and_goal_of_a_taxi_can_be_told_apart() -> None:
    shown = {begun(Gymnasium(id="Taxi-v4"), seed) for seed in range(20)}
    assert len(shown) > 15
    for text in shown:
        assert "\x1b" not in text
        assert (len(re.findall(r"\[.\]", text)), len(re.findall(r"\{\[?[RGYB]\]?\}", text))) == (
            1,
            1,
        )
        assert len(re.findall(r"\((?:[RGYB]|\[[RGYB]\])\)", text)) == 1


def test_a_prompt_begins_all_its_trajectories_in_one_state() -> None:
    starts = [begun(Gymnasium(id="Taxi-v4"), seed=7) for _ in range(3)]
    assert len({*starts}) == 1


def test_numbers_have_places_and_actions_may_be_named() -> None:
    table = Gymnasium(id="Blackjack-v1", actions=["S", "H"], observation="{0} vs {1}: {actions}?")
    first = begun(table)
    assert re.fullmatch(r"\d+ vs \d+: s, h\?", first)
    assert begun(Gymnasium(id="Blackjack-v1")).split(", ")[:2] == re.findall(r"\d+", first)
    ((_, given, done),) = played(table, "<answer>hit</answer><answer>s</answer>")
    assert done
    assert given["reward"] in (-1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"id": "CartPole-v1"}, "observations of CartPole-v1 are of Box, which cannot be"),
        ({"id": "Taxi-v4", "actions": ["n"]}, "Taxi-v4 has 6 actions, but `actions` names 1"),
        ({"id": "Taxi-v4", "observation": "{0}"}, "observations of Taxi-v4 have no {0}"),
        ({"id": "Nothing-v1"}, "Nothing"),
        ({"id": "Taxi-v4", "options": {"is_rany": True}}, "is_rany"),
        ({"id": "Taxi-v4", "max_episode_steps": 0}, "max_episode_steps"),
    ],
)
def test_what_is_no_text_ends_a_run_before_it_starts(
    given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    made = spec.Environment(type_name="gymnasium", args=given, path="", sha256="", gymnasium=True)
    with pytest.raises(LaunchError, match=re.escape(told)) as error:
        load(ServedEnvironment(name="game", environment=made, job_dir=str(tmp_path)))
    assert "environment game" in str(error.value)


def test_an_environment_that_a_file_registers_is_played_in_its_process(tmp_path: Path) -> None:
    files = {"maze": MAZE, "hidden": 'WAY = "new"\n'}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    made = spec.Environment(
        type_name="gymnasium", path="maze.py", sha256=digests["maze"], gymnasium=True,
        args={"id": "Maze-v0", "options": {"doors": 3}}, parts=("reward", "invalid"),
        modules={n: spec.Module(path=f"{n}.py", sha256=digests[n]) for n in files},
    )  # fmt: skip

    async def play() -> list[Any]:
        served = ServedEnvironment(name="game", environment=made, job_dir=str(tmp_path))
        process = EnvironmentProcess(served)
        try:
            await process.start(60.0)
            asked = [Request(key="0", op="reset", seconds=9, task=Task(text="q"), seed=3)]
            turns = [Turn(text=text) for text in ("south", "<answer>se</answer>", "new")]
            asked += [Request(key="0", op="step", seconds=9, turn=turn) for turn in turns]
            replies = [await process.ask(each) for each in asked]
        finally:
            process.close()
        assert [reply.error for reply in replies] == [""] * 4
        return [reply.value for reply in replies]

    start, wrong, no, solved = asyncio.run(play())
    assert isinstance(start, Start)
    assert re.fullmatch(r"room: \d \d, said: hello", str(start.observation))
    assert str(wrong.observation).startswith("`south` is no action\nroom: ")
    assert (dict(wrong.rewards), no.done) == ({"invalid": 1.0}, False)
    assert isinstance(solved, Step)
    assert (dict(solved.rewards), solved.done) == ({"reward": 1.0}, True)
