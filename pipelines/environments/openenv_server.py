"""A server of OpenEnv with the game that openenv.forge plays: one sum, in at most three guesses.

    python openenv_server.py [PORT]        # 8000 if no port is given

Needs `pip install openenv-core`, best in an environment of its own.
"""

from __future__ import annotations

import re
import sys
from random import Random
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

GUESSES = 3
ANSWER = re.compile(r"<answer>(\d{1,4})</answer>")


class Said(Action):  # type: ignore[misc]  # openenv is not installed where types are checked
    message: str


class Seen(Observation):  # type: ignore[misc]
    message: str


class Sum(Environment):  # type: ignore[misc]
    """A sum of two numbers below 50. After a wrong guess it says `+` or `-`, and the sum again."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Seen:
        rng = Random(seed)
        self.parts = rng.randrange(50), rng.randrange(50)
        self.guesses = 0
        return Seen(message=self.question(), done=False, reward=0.0)

    def step(self, action: Said, timeout_s: float | None = None, **given: Any) -> Seen:
        found, right = ANSWER.search(action.message), sum(self.parts)
        guess = int(found[1]) if found is not None else -1
        self.guesses += 1
        done = guess == right or self.guesses == GUESSES
        said = "" if done else ("+" if guess < right else "-") + self.question()
        return Seen(message=said, done=done, reward=float(guess == right))

    def question(self) -> str:
        return "{}+{}=".format(*self.parts)

    @property
    def state(self) -> State:
        return State(step_count=self.guesses)


if __name__ == "__main__":
    app = create_fastapi_app(Sum, Said, Seen, max_concurrent_envs=1024)
    uvicorn.run(app, port=int(sys.argv[1]) if sys.argv[1:] else 8000, log_level="warning")
