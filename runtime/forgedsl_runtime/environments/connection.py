"""Connection from the controller to a process of an environment pool, for the requests of turns.

    actor: listen() --address, by the endpoint `listen`--> connect()
    connect() --(number, PoolRequest)--> answer --(number, Reply or Wire, last)--> connect()

Monarch starts the processes and reports their end. But every turn of a trajectory needs a message,
and a message of Monarch costs the controller several times as much as one over this connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from forgedsl_runtime.hosts.addresses import own_address
from forgedsl_runtime.worker_process import CallClient, CallServer

if TYPE_CHECKING:
    from forgedsl_runtime.environments.bridge import Bridge

SECONDS = 60.0
"""time limit for connecting"""
Wire = tuple[list[int], str, str, dict[str, float]]
"""answer to most steps (`bridge.TokenizedObservation`, rewards) as a plain tuple, since unpickling
a class by name takes longer than the rest of the message"""
Address = tuple[str, str, int, bytes]
"""(Unix socket name, host, port, secret); on the same machine a Unix socket takes a third of the
time of TCP"""


class PoolRequest(NamedTuple):
    """Request about a trajectory or its process. The meaning of `given` and `number` depends on
    `op`:

    tools    nothing
    bridge   given: (form of tool calls, schemas of tools, True if the process tokenizes
             observations, a pickled Bridge or None); answered only if it fails
    reset    given: a task; number: a seed
    step     given: text of a turn; number: number of the turn
    close    nothing; answered only if it fails
    run      (agents) given: (a task, `Terms`); number: a seed
    events   (agents) nothing
    answer   (agents) given: arguments of `Session.answered`; not answered
    refuse   (agents) given: arguments of `Session.refused`; not answered
    """

    op: str
    key: str = ""
    given: Any = None
    number: int = 0
    bridge: str = ""
    """name of the `bridge` message that says how to read tool calls and tokenize observations"""
    chat: bool = False


def bridge_request(
    bridge: Bridge, name: str, pickled: bytes | None, *, tokenizes: bool = True
) -> PoolRequest:
    """Return the message that tells a process the form of tool calls and their schemas, so that it
    can read them. With a `pickled` Bridge it also tokenizes observations; with `tokenizes` False,
    the Bridge is sent only because a parser of vLLM needs its tokenizer."""
    given = (bridge.tool_form, bridge.tools, tokenizes, pickled)
    return PoolRequest("bridge", given=given, bridge=name)


async def listen(
    answer: Callable[[PoolRequest], Awaitable[tuple[Any, bool]]],
) -> tuple[list[asyncio.Server], Address]:
    """Listen for clients that send the secret of the address; return the servers and the
    address."""
    secret, name = secrets.token_bytes(16), f"\0forgedsl-{secrets.token_hex(8)}"
    loop = asyncio.get_running_loop()

    def made() -> CallServer:
        return CallServer(lambda item: answer(PoolRequest(*item)), secret)

    servers = [await loop.create_server(made, own_address(), 0)]
    with suppress(OSError):  # abstract socket names exist on Linux only
        servers.append(await loop.create_unix_server(made, name))
    host, port = servers[0].sockets[0].getsockname()[:2]
    return servers, (name, host, port, secret)


async def connect(
    address: Address, on_message: Callable[[Any], object] | None = None
) -> CallClient:
    """Connect to a process of a pool.

    Raises:
        OSError: nothing listens there; TimeoutError, a subclass, if connecting takes too long.
    """
    name, host, port, secret = address
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECONDS):
        try:
            transport, connection = await loop.create_unix_connection(
                lambda: CallClient(on_message), name
            )
        except OSError:  # the process is on another machine
            transport, connection = await loop.create_connection(
                lambda: CallClient(on_message), host, port
            )
    transport.write(secret)
    return connection
