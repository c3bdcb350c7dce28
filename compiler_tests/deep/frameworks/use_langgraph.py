"""LangGraph's prebuilt agent with one tool."""

import json
import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent


@tool
def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


with open(os.environ["FORGE_TASK"]) as file:
    task = json.load(file)
policy = ChatOpenAI(model=os.environ["FORGE_MODEL"], max_tokens=16)
agent = create_react_agent(policy, [add])
said = ""
try:
    done = agent.invoke({"messages": [("user", task["text"])]}, {"recursion_limit": 6})
    said = done["messages"][-1].text
except GraphRecursionError:
    pass
print(float(task["target"] in str(said)))
