"""Multi-turn environments: base class for your own Python file. Needs no torch.

    from forgedsl.environment import Environment, Start, Step, Task, Turn, tool

    class Desk(Environment):
        parts = ("found",)                             # reward parts that steps may give

        def __init__(self, *, rows: int = 40) -> None: ...
        def reset(self, task: Task, rng: Random) -> Start: ...

        @tool
        def lookup(self, key: str) -> str:
            "The price of a thing."

        def step(self, turn: Turn) -> Step: ...        # by default runs the calls of the turn

Each trajectory has an object of its own. All trajectories of a prompt get an `rng` with the same
seed. Any method may be `async`. Other methods run in threads, so that a slow one does not block
other trajectories.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from forgedsl.tool_calls import Call as Call

F = TypeVar("F", bound=Callable[..., Any])
Message = Mapping[str, Any]
MARK = "__forge_tool__"
JSON_TYPES = {
    str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Task:
    """The task of a trajectory: one row of the dataset.

    `text` is the prompt as the policy reads it. `messages` are the chat messages that it was
    rendered from, if the prompt is a chat.
    """

    text: str
    messages: tuple[Message, ...] | None = None
    target: Any = None


@dataclass(frozen=True)
class Start:
    """Opening of a trajectory, after the prompt: text, or messages of a chat."""

    observation: str | Sequence[Message] = ""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of the policy: its text, the tool calls in it, and which one it is, from 0."""

    text: str
    calls: tuple[Call, ...] = ()
    number: int = 0


@dataclass(frozen=True)
class Step:
    """Result of a turn: the observation (text, or chat messages), reward parts, and `done`. When
    `done` is true, the policy does not read the observation.

    Example:
        Step("higher", rewards={"close": 0.5})
    """

    observation: str | Sequence[Message] = ""
    rewards: Mapping[str, float] = field(default_factory=dict)
    done: bool = False


def tool(function: F) -> F:
    """Mark a method as a tool. Its JSON schema is made from its annotations and its docstring."""
    setattr(function, MARK, True)
    return function


class Environment:
    """Base class of environments. `parts` names the reward parts that `step` may return."""

    parts: tuple[str, ...] = ()

    def reset(self, task: Task, rng: Random) -> Any:
        """Begin a trajectory with a `Start`."""
        return Start()

    def step(self, turn: Turn) -> Any:
        """Answer a turn. May be `async`. The default runs the tool calls in order; a turn without a
        tool call ends the trajectory."""
        return self.call_tools(turn)

    async def call_tools(self, turn: Turn) -> Step:
        """Run the turn's tool calls and return their results as messages of role `tool`; `done` is
        true if the turn has no call."""
        if not turn.calls:
            return Step(done=True)
        return Step([await self._result(call) for call in turn.calls])

    def close(self) -> Any:
        """End a trajectory; called once, whatever happened."""

    async def offered(self) -> dict[str, dict[str, Any]]:
        """Return the tools that the policy may call: name -> JSON schema."""
        return tools_of(type(self))

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool call and return its result as text."""
        return str(await self.run(getattr(self, name), **arguments))

    async def _result(self, call: Call) -> Message:
        known = await self.offered()
        if call.status != "ok":
            text = f"error: this call is not valid ({call.status})"
        elif call.name not in known:
            text = f"error: there is no tool {call.name}; there are {', '.join(known)}"
        else:
            try:
                text = await self.call_tool(call.name, call.arguments)
            except TimeoutError:
                text = f"error: {call.name} did not answer in time"
            except TypeError as error:
                text = f"error: {error}"
        return {"role": "tool", "name": call.name, "content": text}

    async def run(self, method: Callable[..., Any], **given: Any) -> Any:
        """Call a tool method. In a run, the worker replaces this function by one with a time
        limit."""
        value = method(**given)
        return await value if inspect.isawaitable(value) else value


def tools_of(cls: type[Environment]) -> dict[str, dict[str, Any]]:
    """Return the tools of a class: name -> JSON schema, in the form that chat templates take.

    Example:
        tools_of(Desk)["lookup"]["function"]["parameters"]["required"] == ["key"]
    """
    found = {}
    for name in dir(cls):
        method = getattr(cls, name)
        if getattr(method, MARK, False):
            found[name] = _schema(name, method)
    return found


def _schema(name: str, method: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": inspect.getdoc(method) or "",
            "parameters": {
                "type": "object",
                "properties": {p.name: _type(hints[p.name]) for p in parameters},
                "required": [p.name for p in parameters if p.default is p.empty],
            },
        },
    }


def _type(hint: Any) -> dict[str, Any]:
    """Convert an annotation such as `list[str]` to a JSON schema."""
    found: dict[str, Any] = {"type": JSON_TYPES[get_origin(hint) or hint]}
    arguments = get_args(hint)
    if found["type"] == "array" and arguments:
        found["items"] = _type(arguments[0])
    return found
