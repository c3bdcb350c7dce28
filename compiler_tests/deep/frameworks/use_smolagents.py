"""The ToolCallingAgent of smolagents with one tool."""

import json
import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Return the sum of two numbers.

    Args:
        a: a number
        b: another number
    """
    return a + b


with open(os.environ["FORGE_TASK"]) as file:
    task = json.load(file)
policy = OpenAIServerModel(
    os.environ["FORGE_MODEL"], api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"], max_tokens=16,
)  # fmt: skip
agent = ToolCallingAgent(tools=[add], model=policy, max_steps=1)
print(float(task["target"] in str(agent.run(task["text"]))))
