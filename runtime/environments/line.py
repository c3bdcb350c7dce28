"""From the controller to a process of a pool: what a trajectory asks on each turn.

    actor: listen() --address, in its description--> connect() --(number, Request)--> answer
                                                           <--(number, Reply, last)--'

Monarch starts the processes and tells of their end; its messages cost the controller several times
as much, and every turn of every trajectory is one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from forgedsl.runtime.child import Calls, answer_all
from forgedsl.runtime.hosts.addresses import own_address

SECONDS = 60.0
"""for a connection"""
Address = tuple[str, str, int, bytes]
"""by name on the same machine, where that takes a third of the time of TCP; what is said first"""


async def listen(
    answer: Callable[[Any], Awaitable[tuple[Any, bool]]],
) -> tuple[list[asyncio.Server], Address]:
    """Answer whoever knows the secret of the address."""
    secret, name = secrets.token_bytes(16), f"\0forgedsl-{secrets.token_hex(8)}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # who asked is gone
            if hmac.compare_digest(await reader.readexactly(len(secret)), secret):
                await answer_all(reader, writer, answer)
        writer.close()

    servers = [await asyncio.start_server(serve, own_address(), 0)]
    with suppress(OSError):  # such names are Linux's
        servers.append(await asyncio.start_unix_server(serve, name))
    host, port = servers[0].sockets[0].getsockname()[:2]
    return servers, (name, host, port, secret)


async def connect(address: Address) -> Calls:
    """Raises OSError (TimeoutError too) where nothing listens."""
    name, host, port, secret = address
    async with asyncio.timeout(SECONDS):
        try:
            streams = await asyncio.open_unix_connection(name)
        except OSError:  # it is on another machine
            streams = await asyncio.open_connection(host, port)
    streams[1].write(secret)
    return Calls(*streams)
