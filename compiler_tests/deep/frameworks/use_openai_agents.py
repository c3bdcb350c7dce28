"""The Agents SDK of OpenAI, over the Responses API, with one tool."""

import asyncio
import json
import os
from contextlib import suppress

from agents import (
    Agent,
    AgentsException,
    ModelSettings,
    Runner,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


async def main() -> None:
    with open(os.environ["FORGE_TASK"]) as file:
        task = json.load(file)
    agent = Agent(
        name="adder", model=os.environ["FORGE_MODEL"], instructions="Use the tool.", tools=[add],
        model_settings=ModelSettings(max_tokens=16),
    )  # fmt: skip
    said = ""
    with suppress(AgentsException):  # too many turns, or an answer that was cut
        said = (await Runner.run(agent, task["text"], max_turns=3)).final_output
    print(float(task["target"] in said))


asyncio.run(main())
