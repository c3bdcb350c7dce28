"""The game of environments/sums.py as an agent: it asks the policy through an OpenAI client.

7+5=<answer>13</answer>  ->  -7+5=<answer>12</answer>          done, 2 answers
"""

from __future__ import annotations

import re
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from forgedsl.agent import Agent, Model, Task

HTTP = DefaultAsyncHttpxClient()  # one for all trajectories: to make one takes 30 ms
ANSWER = re.compile(r"<answer>(\d{1,4})</answer>")


class Guesser(Agent):
    """Guesses until the sum is right. `solved` is 1 then, `early` the share of guesses not used."""

    parts = ("solved", "early")

    def __init__(self, *, guesses: int = 4) -> None:
        self.guesses = guesses

    async def run(self, task: Task, model: Model) -> dict[str, float]:
        said: list[Any] = [dict(message) for message in task.messages or ()]
        client = AsyncOpenAI(base_url=model.url, api_key=model.key, http_client=HTTP)
        for turn in range(self.guesses):
            answer = await client.chat.completions.create(model=model.name, messages=said)
            choice = answer.choices[0]
            if choice.finish_reason == "length":
                break
            text = choice.message.content or ""
            found = ANSWER.search(text)
            if found is not None and found[1] == task.target:
                left = (self.guesses - turn - 1) / max(1, self.guesses - 1)
                return {"solved": 1.0, "early": left}
            hint = "?" if found is None else "+" if int(found[1]) < int(task.target) else "-"
            said.append({"role": "assistant", "content": text})
            said.append({"role": "user", "content": hint + task.text})
        return {"solved": 0.0, "early": 0.0}
