"""Environments of OpenEnv, at a server. The server needs openenv-core, this file only aiohttp,
which comes with vLLM.

    python -m venv /venvs/openenv
    /venvs/openenv/bin/python -m pip install openenv-core
    /venvs/openenv/bin/python environments/openenv_server.py    # the game that openenv.forge plays
"""

from __future__ import annotations

from random import Random
from typing import Any

import aiohttp

from forgedsl.environment import Environment, Start, Step, Task, Turn


class OpenEnv(Environment):
    """An environment of OpenEnv, at a server."""

    parts = ("reward",)

    def __init__(self, *, url: str, field: str = "message", shown: str = "message") -> None:
        self.url, self.field, self.shown = url, field, shown
        self.http: aiohttp.ClientSession | None = None

    async def reset(self, task: Task, rng: Random) -> Start:
        self.http = aiohttp.ClientSession()
        self.socket = await self.http.ws_connect(f"{self.url}/ws")
        found = await self.ask("reset", {"seed": rng.getrandbits(31)})
        return Start(self.text(found))

    async def step(self, turn: Turn) -> Step:
        found = await self.ask("step", {self.field: turn.text})
        reward = float(found.get("reward") or 0.0)
        return Step(self.text(found), {"reward": reward}, done=bool(found["done"]))

    async def close(self) -> None:
        if self.http is not None:
            await self.http.close()

    async def ask(self, kind: str, data: dict[str, Any]) -> Any:
        await self.socket.send_json({"type": kind, "data": data})
        answer = await self.socket.receive_json()
        if answer["type"] == "error":
            raise RuntimeError(f"OpenEnv: {answer['data']['message']}")
        return answer["data"]

    def text(self, found: dict[str, Any]) -> str:
        return f"\n{found['observation'].get(self.shown, '')}\n"


class Plain(OpenEnv):
    """Shows observations without line breaks, which the small model has not learned."""

    def text(self, found: dict[str, Any]) -> str:
        return super().text(found).strip()
