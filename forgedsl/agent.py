"""Agents: base class for your own Python file. Needs no torch and no HTTP client.

    from forgedsl.agent import Agent, Model, Task
    from openai import AsyncOpenAI                     # or any other client, or any framework

    class Fixer(Agent):
        parts = ("solved",)                            # reward parts that `run` may return

        async def run(self, task: Task, model: Model) -> float | dict[str, float]:
            client = AsyncOpenAI(base_url=model.url, api_key=model.key)
            ...
            return {"solved": 1.0}

An agent sends its own requests to the policy, through an OpenAI-compatible endpoint that the run
serves. The answers are the trajectory: each token as it was sampled, with its log-prob and weight
version. Each trajectory has an object of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from forgedsl.environment import Task

__all__ = ["Agent", "Model", "Task"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """The policy, as an agent reaches it: base URL, key of this trajectory, name for `model=`.

    Example:
        AsyncOpenAI(base_url=model.url, api_key=model.key)
    """

    url: str
    key: str
    name: str


class Agent:
    """Base class of agents. `parts` names the reward parts that `run` may return. `rng` has the
    same seed in all trajectories of a prompt."""

    parts: tuple[str, ...] = ("reward",)
    rng: Random

    async def run(self, task: Task, model: Model) -> float | Mapping[str, float] | None:
        """Do the task. Return the reward: a number, if the class has one part; or a number for each
        part; or None, if rewards of the file judge the trajectory."""
        raise NotImplementedError("write `async def run(self, task, model)`")

    def close(self) -> Any:
        """End a trajectory; called once, whatever happened."""
