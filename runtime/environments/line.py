"""From the controller to a process of a pool: what a trajectory asks on each turn.

    actor: listen() --address, in its description--> connect() --(number, Asked)--> answer
                                                     <--(number, Reply or Wire, last)--'

Monarch starts the processes and tells of their end; its messages cost the controller several times
as much, and every turn of every trajectory is one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from forgedsl.runtime.hosts.addresses import own_address
from forgedsl.runtime.worker_process import Answers, Calls

SECONDS = 60.0
"""for a connection"""
Wire = tuple[list[int], str, str, dict[str, float]]
"""the answer to most steps (`bridge.Made`, rewards), plain as `Asked`: to find classes by their
names takes longer than all else of a message"""
Address = tuple[str, str, int, bytes]
"""by name on the same machine, where that takes a third of the time of TCP; what is said first"""


class Asked(NamedTuple):
    """Of a trajectory, or of its process: `tools`, `bridge` (`given`, pickled), `reset` (a task, a
    seed), `step` (the text of a turn, its number), `close`. `bridge` and `close` are only told."""

    op: str
    key: str = ""
    given: Any = None
    number: int = 0
    bridge: str = ""
    """what makes tokens of the observation, if it is known there"""
    chat: bool = False


async def listen(
    answer: Callable[[Asked], Awaitable[tuple[Any, bool]]],
) -> tuple[list[asyncio.Server], Address]:
    """Answer whoever knows the secret of the address."""
    secret, name = secrets.token_bytes(16), f"\0forgedsl-{secrets.token_hex(8)}"
    loop = asyncio.get_running_loop()

    def made() -> Answers:
        return Answers(lambda item: answer(Asked(*item)), secret)

    servers = [await loop.create_server(made, own_address(), 0)]
    with suppress(OSError):  # such names are Linux's
        servers.append(await loop.create_unix_server(made, name))
    host, port = servers[0].sockets[0].getsockname()[:2]
    return servers, (name, host, port, secret)


async def connect(address: Address, told: Callable[[Any], object] | None = None) -> Calls:
    """Raises OSError (TimeoutError too) where nothing listens."""
    name, host, port, secret = address
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECONDS):
        try:
            transport, line = await loop.create_unix_connection(lambda: Calls(told), name)
        except OSError:  # it is on another machine
            transport, line = await loop.create_connection(lambda: Calls(told), host, port)
    transport.write(secret)
    return line
