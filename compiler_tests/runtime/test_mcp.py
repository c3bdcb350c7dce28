"""Tools of a real MCP server in an environment: listed, called, late, wrong, and when it dies."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from forgedsl.environment import Call, Start, Task, Turn
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.mcp import MCPTools
from forgedsl_runtime.environments.process import CALL_GRACE, EnvironmentProcess
from forgedsl_runtime.environments.worker import Reply, Request, ServedEnvironment

SERVER = """
import asyncio
import os
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("prices")
asked = []


@server.tool()
async def price(thing: str) -> str:
    \"\"\"The price of a thing.\"\"\"
    asked.append(thing)
    if thing == "slow":
        await asyncio.sleep(60)
    if thing == "hang":
        time.sleep(600)
    if thing == "die":
        os._exit(3)
    if thing == "none":
        raise ToolError("there is no such thing")
    return f"{thing} costs {len(asked)}"


server.run()
"""
DESK = """
from forgedsl.environment import Step, tool
from forgedsl.mcp import MCPTools


class Desk(MCPTools):
    command = {command}
    shared = {shared}

    @tool
    def own(self, key: str) -> str:
        \"\"\"Not of the server.\"\"\"
        return f"own {{key}}"
"""


def call(thing: str, name: str = "price") -> Call:
    return Call(name=name, arguments={"key" if name == "own" else "thing": thing})


def played(
    folder: Path, *steps: tuple[str, Call], shared: bool = False, command: tuple[str, ...] = (),
    seconds: float = 9.0,
) -> list[Any]:  # fmt: skip
    """The schemas, then what each call of a trajectory is answered, one after the other; those that
    are late or an error as a reply."""
    (folder / "server.py").write_text(SERVER)
    text = DESK.format(
        command=repr(command or (sys.executable, str(folder / "server.py"))), shared=shared
    )
    (folder / "desk.py").write_text(text)
    environment = spec.Environment(
        type_name="Desk", path="desk.py", sha256=hashlib.sha256(text.encode()).hexdigest(),
        tool_timeout=3.0,
    )  # fmt: skip

    async def main() -> list[Any]:
        process = EnvironmentProcess(
            ServedEnvironment(name="desk", environment=environment, job_dir=str(folder))
        )
        try:
            tools = await process.ask(Request(key="", op="tools", seconds=30.0))
            if tools.error:
                return [tools]
            found = [tools.value]
            for key in dict.fromkeys(key for key, _ in steps):
                request = Request(key=key, op="reset", seconds=30.0, task=Task(text=""), seed=1)
                assert (await process.ask(request)).value == Start()
            for key, each in steps:
                turn = Turn(text="", calls=(each,))
                reply = await process.ask(Request(key=key, op="step", seconds=seconds, turn=turn))
                found.append(reply if reply.error else reply.value.observation[0]["content"])
            return found
        finally:
            process.close()

    return asyncio.run(main())


def test_the_tools_of_a_server_are_in_the_form_of_chat_templates(tmp_path: Path) -> None:
    ((price, own),) = played(tmp_path)
    assert (price["function"]["name"], own["function"]["name"]) == ("price", "own")
    assert price["function"]["description"] == "The price of a thing."
    assert price["function"]["parameters"]["required"] == ["thing"]
    assert price["function"]["parameters"]["properties"]["thing"]["type"] == "string"


@pytest.mark.parametrize(("shared", "second"), [(False, "nut costs 1"), (True, "nut costs 2")])
def test_each_trajectory_has_a_server_unless_they_share_one(
    tmp_path: Path, shared: bool, second: str
) -> None:
    steps = ("a", call("nail")), ("b", call("nut")), ("a", call("k", "own"))
    assert played(tmp_path, *steps, shared=shared)[1:] == ["nail costs 1", second, "own k"]


@pytest.mark.full
def test_what_a_server_refuses_is_told_to_the_policy(tmp_path: Path) -> None:
    wrong = Call(name="price", arguments={"weight": 1})
    _, refused, missing, unknown, late, after = played(
        tmp_path, ("a", call("none")), ("a", wrong), ("a", Call(name="cost")), ("a", call("slow")),
        ("a", call("nail")),
    )  # fmt: skip
    assert refused.startswith("error: ")
    assert "there is no such thing" in refused
    assert missing.startswith("error: ")
    assert unknown == "error: there is no tool cost; there are price, own"
    assert late == "error: price did not answer in time"
    assert after == "nail costs 3"


def test_a_server_that_dies_costs_its_own_trajectory(tmp_path: Path) -> None:
    _, died, other, again = played(
        tmp_path, ("a", call("die")), ("b", call("nail")), ("a", call("nail"))
    )
    assert isinstance(died, Reply)
    assert "server.py` ended in `price`" in died.error
    assert other == "nail costs 1"
    assert "server.py` has ended" in again.error


@pytest.mark.full
def test_a_server_that_no_longer_reads_costs_its_own_trajectory(tmp_path: Path) -> None:
    limit = 3.0 + CALL_GRACE  # as a run gives to a turn with one call
    _, hung, unread, other = played(
        tmp_path, ("a", call("hang")), ("a", call("nail" * 100_000)), ("b", call("nail")),
        seconds=limit,
    )  # fmt: skip
    assert [hung, unread] == 2 * ["error: price did not answer in time"]
    assert other == "nail costs 1"


def test_a_shared_server_that_died_is_started_again(tmp_path: Path) -> None:
    _, died, other = played(tmp_path, ("a", call("die")), ("b", call("nail")), shared=True)
    assert "ended in `price`" in died.error
    assert other == "nail costs 1"


def test_a_server_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (reply,) = played(tmp_path, command=("no-such-program", "x"))
    assert "the MCP server `no-such-program x` did not start: " in reply.error


def test_a_server_is_tried_when_its_environment_is_loaded_and_not_behind_the_models(
    tmp_path: Path,
) -> None:
    text = DESK.format(command=("no-such-program", "x"), shared=True)
    (tmp_path / "desk.py").write_text(text)
    environment = spec.Environment(
        type_name="Desk", path="desk.py", sha256=hashlib.sha256(text.encode()).hexdigest()
    )
    process = EnvironmentProcess(
        ServedEnvironment(name="desk", environment=environment, job_dir=str(tmp_path))
    )
    with pytest.raises(LaunchError, match="MCP server `no-such-program x` did not start"):
        asyncio.run(process.start())


def test_where_the_words_of_a_server_that_ends_at_once_stand_is_told(tmp_path: Path) -> None:
    (reply,) = played(tmp_path, command=(sys.executable, "no_such_server.py"))
    assert "did not start: it ended; its output is in the log" in reply.error


@pytest.mark.parametrize("command", ["python server.py", ("python", 3)])
def test_a_command_is_a_sequence_of_strings(tmp_path: Path, command: Any) -> None:
    (reply,) = played(tmp_path, command=command)
    assert "`command` must be a list such as" in reply.error


def test_a_server_that_never_starts_can_be_closed() -> None:
    class Desk(MCPTools):
        command = ("sleep", "1000")

    async def main() -> bool:
        desk = Desk()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(desk.offered(), 0.5)
        await asyncio.wait_for(desk.close(), 60)
        return desk._own is not None and desk._own.ended

    assert asyncio.run(main())
