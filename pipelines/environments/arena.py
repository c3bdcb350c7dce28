"""Games of TextArena for one player: `pip install textarena` in the environment of ForgeDSL."""

from __future__ import annotations

import re
from random import Random

import textarena as ta

from forgedsl.environment import Environment, Start, Step, Task, Turn

NUMBER = re.compile(r"\d+")


class Arena(Environment):
    """A game of TextArena for one player."""

    parts = ("reward", "invalid")

    def __init__(self, *, game: str = "GuessTheNumber-v0") -> None:
        self.env = ta.make(f"{game}-raw")

    async def reset(self, task: Task, rng: Random) -> Start:
        # async, so that no other game draws between the seed and the game: TextArena seeds the
        # random generator of the process
        self.env.reset(num_players=1, seed=rng.getrandbits(31))
        return Start(self.news())

    async def step(self, turn: Turn) -> Step:
        done, _ = self.env.step(turn.text)
        if not done:
            return Step(self.news())
        rewards, info = self.env.close()
        given = {"reward": rewards[0], "invalid": float(info[0]["invalid_move"])}
        return Step(rewards=given, done=True)

    def news(self) -> str:
        _, messages = self.env.get_observation()
        own = ta.ObservationType.PLAYER_ACTION
        return "\n" + "\n".join(text for _, text, kind in messages if kind is not own) + "\n"


class Digits(Arena):
    """GuessTheNumber for a model that can only do sums. The last number of an answer is the guess;
    after a 7 it sees `7+1=` if the number is higher, and `7-1=` if it is lower."""

    async def reset(self, task: Task, rng: Random) -> Start:
        await super().reset(task, rng)
        return Start("10+0=")

    async def step(self, turn: Turn) -> Step:
        found = NUMBER.findall(turn.text)
        guess = int(found[-1][:3]) if found else ""  # 07 is shown as 7: it has not learned 07
        step = await super().step(Turn(text=f"[{guess}]", number=turn.number))
        sign = "+" if "higher" in step.observation else "-"
        shown = "" if step.done else f"{guess}{sign}1=" if found else "10+0="
        return Step(shown, step.rewards, done=step.done)
