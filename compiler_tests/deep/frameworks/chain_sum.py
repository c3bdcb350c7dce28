"""Sums of reasoning-gym, answered by an agent of openai-agents; reasoning-gym scores the answer.

`packages` are folders of packages that are not installed beside ForgeDSL.
"""

import re
import sys

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import forgedsl

HTTP = DefaultAsyncHttpxClient()
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)


class Chain(forgedsl.Agent):
    """Asks once. The reward is `score_answer` of the data set."""

    def __init__(self, *, packages: list[str]) -> None:
        sys.path += [folder for folder in packages if folder not in sys.path]

    async def run(self, task, model):  # type: ignore[no-untyped-def]
        import reasoning_gym
        from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

        set_tracing_disabled(True)
        client = AsyncOpenAI(base_url=model.url, api_key=model.key, http_client=HTTP)
        policy = OpenAIChatCompletionsModel(model=model.name, openai_client=client)
        done = await Runner.run(Agent(name="adder", model=policy), task.text)
        found = ANSWER.search(str(done.final_output))
        sums = reasoning_gym.create_dataset("chain_sum", size=1)
        return sums.score_answer(found[1] if found else None, {"answer": task.target})
