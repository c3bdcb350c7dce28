"""Environment whose tools come from an MCP server. Uses the official package `mcp`.

    from forgedsl.mcp import MCPTools

    class Desk(MCPTools):
        command = ("python", "/srv/prices.py")    # a server over stdin and stdout

Each trajectory starts a server of its own, so it has its own state, and a crash of the server ends
no other trajectory. With `shared = True` all trajectories of a process share one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from forgedsl.environment import Environment, Start, Task, tools_of

try:
    from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client
    from mcp_types import CONNECTION_CLOSED, PaginatedRequestParams, TextContent
except ImportError as error:
    raise ImportError('tools over MCP need a package: pip install "forgedsl[mcp]"') from error


T = TypeVar("T")


class MCPTools(Environment):
    """Base of environments with tools of an MCP server. Methods marked `@tool` are offered too.

    If you override `reset` or `close`, call the method of this base class.
    """

    command: Sequence[str] = ()
    """command that starts the server, in the folder where the run was started"""
    variables: Mapping[str, str] = {}
    """environment variables of the server, besides HOME, PATH and the like"""
    shared = False

    _listed: ClassVar[dict[tuple[str, ...], dict[str, dict[str, Any]]]] = {}
    _common: ClassVar[dict[tuple[str, ...], _Server]] = {}
    _own: _Server | None = None

    async def reset(self, task: Task, rng: Any) -> Start:
        """Start the server."""
        await self._server()
        return Start()

    async def offered(self) -> dict[str, dict[str, Any]]:
        """Return the server's tools and those of the class."""
        key = tuple(self.command)
        if key not in self._listed:  # a server does not change its tools in a run
            self._listed[key] = await (await self._server()).tools()
        return {**self._listed[key], **tools_of(type(self))}

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of the class or of the server."""
        if name in tools_of(type(self)):
            return await super().call_tool(name, arguments)
        server = await self._server()
        return str(await self.run(server.call, name=name, arguments=dict(arguments)))

    async def close(self) -> None:
        """Stop the server, unless other trajectories share it."""
        if self._own is not None:
            await self._own.stop()

    async def _server(self) -> _Server:
        """Return the server; start it if it does not run."""
        key = tuple(self.command)
        found = self._common.get(key) if self.shared else self._own
        if found is None or (self.shared and found.ended):
            found = _Server(self.command, self.variables)
            if self.shared:
                self._common[key] = found
            else:
                self._own = found
        await found.started()
        return found


class _Server:
    """One server and its MCP session. A task of its own opens and closes both."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        if isinstance(command, str) or not (command and all(isinstance(c, str) for c in command)):
            raise ValueError(
                f'`command` must be a list such as ("python", "server.py"), not {command!r}'
            )
        self._name = " ".join(command)
        program, *args = command
        self._given = StdioServerParameters(command=program, args=args, env=dict(variables))
        loop = asyncio.get_running_loop()
        self._session: asyncio.Future[ClientSession] = loop.create_future()
        self._stop = asyncio.Event()
        self.ended = False
        self._task = asyncio.create_task(self._serve())

    async def started(self) -> ClientSession:
        """Wait for the session.

        Raises:
            ConnectionError: the server could not be started, or has ended.
        """
        session = await asyncio.shield(self._session)
        if self.ended:
            raise ConnectionError(f"the MCP server `{self._name}` has ended")
        return session

    async def tools(self) -> dict[str, dict[str, Any]]:
        """Return its tools by name, in the form that chat templates take."""
        session, found, cursor = await self.started(), [], None
        while True:
            params = PaginatedRequestParams(cursor=cursor)
            page = await _apart(session.list_tools(params=params))
            found += page.tools
            if not (cursor := page.next_cursor):
                break
        return {
            tool.name: {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in found
        }

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool and return the text of its result. An error that the server reports is
        returned as text too: the policy made the wrong call.

        Raises:
            ConnectionError: the server has ended.
        """
        session = await self.started()
        try:
            result = await _apart(session.call_tool(name, arguments))
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                return f"error: {error.message}"
            self.ended = True
            raise ConnectionError(f"the MCP server `{self._name}` ended in `{name}`") from None
        texts = [
            each.text if isinstance(each, TextContent) else f"[{each.type}]"
            for each in result.content
        ]
        return "error: " * bool(result.is_error) + "\n".join(texts)

    async def stop(self) -> None:
        """Stop the server by closing its stdin. A server that goes on running is killed."""
        self._stop.set()
        if not self._session.done():  # a server that hangs at its start never opens a session
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _serve(self) -> None:
        try:
            async with (
                stdio_client(self._given) as (read, write),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                self._session.set_result(session)
                await self._stop.wait()
        except Exception as error:
            if not self._session.done():
                message = f"the MCP server `{self._name}` did not start: {_cause(error)}"
                self._session.set_exception(ConnectionError(message))
        finally:
            self.ended = True


async def _apart(asked: Coroutine[Any, Any, T]) -> T:
    """Await an answer in a task of its own. If we are cancelled, the package `mcp` notifies the
    server, which takes seconds if the server does not read; we do not wait for that."""
    task = asyncio.create_task(asked)
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()
    return task.result()


def _cause(error: BaseException) -> str:
    """Return the text of an error, unwrapped from exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return "it ended; its output is in the log of the environment"
    return str(error) or type(error).__name__
