"""The agent of test_agent_fidelity: tools, streams, thoughts, and requests side by side."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from forgedsl.agent import Agent, Model, Task

REQUESTS = 8
TOOL = {
    "type": "function",
    "function": {
        "name": "add", "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}  # fmt: skip


class Asker(Agent):
    """Asks eight times: answers tool calls, goes on after other answers, and asks a helper beside
    its third request. The reward grows with tool calls and vowels."""

    async def run(self, task: Task, model: Model) -> float:
        said: list[Any] = [dict(message) for message in task.messages or ()]
        heard, called = "", 0
        async with aiohttp.ClientSession() as http:
            for turn in range(REQUESTS - 1):
                mine = _ask(http, model, said, stream=turn % 2 == 1, tools=[TOOL])
                if turn == 2:
                    other = [{"role": "user", "content": f"Help: {task.text}"}]
                    message, helped = await asyncio.gather(
                        mine, _ask(http, model, other, stream=True, tools=[])
                    )
                    heard += helped["content"] or ""
                else:
                    message = await mine
                heard += message["content"] or ""
                said.append(message)
                await asyncio.sleep(self.rng.uniform(0, 0.6))  # groups end at different times
                calls = message.get("tool_calls") or ()
                called += bool(calls)
                for call in calls:
                    said.append({"role": "tool", "tool_call_id": call["id"], "content": "2"})
                if not calls:
                    said.append({"role": "user", "content": f"go on {turn}"})
        vowels = sum(letter in "aeiou" for letter in heard) / max(1, len(heard))
        return (vowels + called) / REQUESTS


async def _ask(
    http: aiohttp.ClientSession, model: Model, messages: list[Any], *, stream: bool,
    tools: list[Any],
) -> dict[str, Any]:  # fmt: skip
    body = {"model": model.name, "messages": messages, "stream": stream}
    if tools:
        body["tools"] = tools
    headers = {"Authorization": f"Bearer {model.key}"}
    async with http.post(model.url + "/chat/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(await response.text())
        if not stream:
            return dict((await response.json())["choices"][0]["message"])
        return _joined((await response.read()).decode())


def _joined(stream: str) -> dict[str, Any]:
    """Put the message of a stream together, as clients do."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for line in stream.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for piece in delta.get("tool_calls") or ():
                known = calls.setdefault(
                    piece["index"],
                    {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
                )
                known["id"] += piece.get("id") or ""
                for name in ("name", "arguments"):
                    known["function"][name] += piece["function"].get(name) or ""
    if calls:
        message["tool_calls"] = list(calls.values())
    return message
