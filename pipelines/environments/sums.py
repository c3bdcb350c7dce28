"""A sum in several guesses: after a wrong one the policy hears in which direction it lies.

7+5=<answer>13</answer>   ->   -7+5=<answer>12</answer>        done, 2 guesses
                               `-- the answer is smaller, and the question once more
"""

from __future__ import annotations

import re

from forgedsl.environment import Environment, Start, Step, Task, Turn

ANSWER = re.compile(r"<answer>(\d{1,4})</answer>")


class Guess(Environment):
    """Ends when the guess is right. `solved` is 1 then, `early` the share of guesses not used."""

    parts = ("solved", "early")

    def __init__(self, *, guesses: int = 4, hint: bool = True) -> None:
        self.guesses, self.hint = guesses, hint

    def reset(self, task: Task, rng: object) -> Start:
        self.question, self.answer = task.text, int(task.target)
        return Start()

    def step(self, turn: Turn) -> Step:
        found = ANSWER.search(turn.text)
        if found is not None and int(found[1]) == self.answer:
            left = (self.guesses - turn.number - 1) / max(1, self.guesses - 1)
            return Step(rewards={"solved": 1.0, "early": left}, done=True)
        said = "?" if found is None else "+" if int(found[1]) < self.answer else "-"
        return Step((said if self.hint else "?") + self.question)
