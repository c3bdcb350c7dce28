"""Values over a stream: whole and in order, however they come, and only of who knows the secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forgedsl_runtime.worker_process import NO_REPLY, CallClient, CallServer, packed

SECRET = b"0123456789abcdef"


class Transport(asyncio.Transport):
    """What is written, write by write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def echo(item: Any) -> tuple[Any, bool]:
    return item, False


def answered(*pieces: bytes, secret: bytes = b"") -> Transport:
    """What is answered to a stream that comes in these pieces."""

    async def main() -> Transport:
        answers, transport = CallServer(echo, secret), Transport()
        answers.connection_made(transport)
        for piece in pieces:
            if not transport.closed:
                answers.data_received(piece)
        for _ in range(3):
            await asyncio.sleep(0)
        return transport

    return asyncio.run(main())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_values_are_answered_however_they_are_cut(size: int) -> None:
    stream = SECRET + packed((0, "a" * 50)) + packed((1, "b"))
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    written = answered(*pieces, secret=SECRET).written
    assert written == [packed((0, "a" * 50, False)) + packed((1, "b", False))]


def test_nothing_of_who_does_not_know_the_secret_is_read() -> None:
    transport = answered(bytes(len(SECRET)) + packed((0, "a")), secret=SECRET)
    assert (transport.closed, transport.written) == (True, [])


def test_what_nobody_waits_for_is_answered_only_with_something() -> None:
    told = packed((NO_REPLY, None)) + packed((NO_REPLY, "why"))
    assert answered(told).written == [packed((NO_REPLY, "why", False))]


def test_calls_of_one_pass_leave_together_and_one_that_is_given_up_is_forgotten() -> None:
    async def main() -> tuple[list[bytes], list[Any], Any]:
        said: list[Any] = []
        calls, transport = CallClient(said.append), Transport()
        calls.connection_made(transport)
        kept, left = calls.call("a"), calls.call("b")
        calls.tell("c")
        left.cancel()
        await asyncio.sleep(0)
        calls.data_received(packed((1, "late", False)) + packed((NO_REPLY, "why", False)))
        calls.data_received(packed((0, "answer", False)))
        return transport.written, said, await kept

    written, said, answer = asyncio.run(main())
    assert written == [packed((0, "a")) + packed((1, "b")) + packed((NO_REPLY, "c"))]
    assert (said, answer) == (["why"], "answer")


def test_calls_on_a_line_that_ends_fail() -> None:
    async def main() -> None:
        calls = CallClient()
        calls.connection_made(Transport())
        waiting = calls.call("a")
        calls.connection_lost(None)
        with pytest.raises(ConnectionError, match="the process has disconnected"):
            await waiting
        with pytest.raises(ConnectionError, match="the process has disconnected"):
            calls.call("b")
        assert not calls.alive

    asyncio.run(main())
