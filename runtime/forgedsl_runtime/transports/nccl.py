"""Transport `nccl`: from GPUs of the trainer to GPUs of engines on other hosts, without host
memory.

    engine  --TCP: turn, begin, end-->                   a thread of the trainer's rank
    engine  <--NCCL: these bytes of the published buffer--  the same thread

Each engine process has a communicator with each rank of the trainer, and a TCP connection beside
it, over which it requests one bucket after the other. So a send is posted only when its receiver is
there. The death of a process is noticed at once by the end of its connection, or after
`tcp.SECONDS` without a bucket; other processes are not affected. docs/design/transports.md explains
why training goes on meanwhile.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor

from forgedsl.errors import RunError
from forgedsl_runtime.hosts.addresses import own_address
from forgedsl_runtime.transports import tcp
from forgedsl_runtime.transports.base import (
    Entry,
    Manifest,
    Part,
    Transport,
    Weights,
    size_of,
    view,
)
from forgedsl_runtime.upstream import nccl

BUCKET = 256 << 20
"""bytes of a bucket: tensors are added until it has at least so many"""
AHEAD = 2
"""buckets in flight while one is copied into the engine"""
ASKED = struct.Struct("!BQQ")
"""request: turn, first byte, end"""
GLANCE, NAP = 1000, 2e-4
"""polling intervals: GLANCE in ms while no request comes, NAP in s while waiting for a transfer"""

Arrived = Callable[[], bool]


class NcclBuffers(tcp.Served):
    """Two buffers on this rank's device, and a thread for each engine process that connects. `net`
    moves the bytes: `upstream.nccl`, or in tests a module with the same functions over gloo."""

    def __init__(self, net: Any, run_key: str) -> None:
        super().__init__(run_key)
        self._net = net
        self.device = net.device()

    def _answer(self, stream: socket.socket, length: int) -> None:
        who = tcp.read(stream, length).decode()
        try:
            self._send(stream)
        except (OSError, RuntimeError, RunError) as error:
            logging.getLogger(__name__).warning("weights to %s: %s", who, error)

    def _send(self, stream: socket.socket) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # each thread has its own
        invitation = self._net.invite()
        stream.sendall(invitation)
        wire = self._net.Wire(0, invitation, _bounded_wait(stream))
        try:
            under_way: deque[Arrived] = deque()
            while asked := _next_request(stream, under_way):
                turn, begin, end = asked
                part = self._buffers[turn][begin:end]
                under_way.append(wire.send(part, _bounded_wait(stream)))
        finally:
            wire.abort()


def _next_request(stream: socket.socket, under_way: deque[Arrived]) -> tuple[int, int, int] | None:
    """Wait for the next request of the engine; None if the engine has disconnected.

    Raises:
        RunError: the engine does not take the buckets in flight.
    """
    looked, since = _data_poll(stream), time.monotonic()
    while not looked.poll(GLANCE):
        while under_way and under_way[0]():
            under_way.popleft()
            since = time.monotonic()
        if under_way and time.monotonic() - since > tcp.SECONDS:
            raise RunError(f"the receiver took no data for {tcp.SECONDS:.0f} s")
    if not stream.recv(1, socket.MSG_PEEK):
        if not all(arrived() for arrived in under_way):
            raise RunError("the receiver disconnected during the transfer")
        return None
    turn, begin, end = ASKED.unpack(tcp.read(stream, ASKED.size))
    return turn, begin, end


def _data_poll(stream: socket.socket) -> select.poll:
    """Return a poll object that tells if data has arrived."""
    looked = select.poll()
    looked.register(stream, select.POLLIN)
    return looked


def _bounded_wait(stream: socket.socket) -> Callable[[], None]:
    """Return a function to call repeatedly while waiting for the other side; it sleeps briefly.

    Raises:
        RunError: the other side is gone, or nothing moved for `tcp.SECONDS`.
        OSError: the connection failed.
    """
    end, looked = time.monotonic() + tcp.SECONDS, _data_poll(stream)

    def wait() -> None:
        if looked.poll(0) and not stream.recv(1, socket.MSG_PEEK):
            raise RunError("the other side has disconnected")
        if time.monotonic() > end:
            raise RunError(f"no data was transferred for {tcp.SECONDS:.0f} s")
        time.sleep(NAP)

    return wait


class NcclConnection:
    """Connection and communicator of an engine process to one rank of the trainer."""

    def __init__(self, net: Any, address: Sequence[Any], secret: bytes) -> None:
        self._net = net
        self._stream = socket.create_connection(tuple(address), tcp.SECONDS)
        try:
            who = _process_label().encode()[:255]
            self._stream.sendall(secret + bytes([len(who)]) + who)
            invitation = tcp.read(self._stream, nccl.INVITATION)
            self._wire = net.Wire(1, invitation, _bounded_wait(self._stream))
        except BaseException:
            self._stream.close()
            raise

    def ask(self, turn: int, begin: int, end: int) -> tuple[Tensor, Arrived]:
        """Request a bucket; return its buffer and a function that tells if it has arrived."""
        into = torch.empty(end - begin, dtype=torch.uint8, device=self._net.device())
        self._stream.sendall(ASKED.pack(turn, begin, end))
        return into, self._wire.receive(into, _bounded_wait(self._stream))

    def wait(self, arrived: Arrived) -> None:
        """Wait until a bucket has arrived."""
        wait = _bounded_wait(self._stream)
        while not arrived():
            wait()

    def close(self) -> None:
        """Abort transfers in flight and close the connection."""
        self._stream.close()
        self._wire.abort()


_open: dict[tuple[Any, ...], NcclConnection] = {}
"""by address: open connections of this process"""


def receive(net: Any, manifest: Manifest) -> Weights:
    """Yield the weights of all ranks, bucket by bucket; later buckets are in flight meanwhile."""
    asked: deque[tuple[Part, Sequence[Entry], Tensor, Arrived]] = deque()
    buckets = [[(part, bucket) for bucket in _buckets(part)] for part in manifest.parts]
    try:  # alternate between ranks: each has its own network card
        for part, bucket in filter(None, chain.from_iterable(zip_longest(*buckets))):
            if len(asked) > AHEAD:
                yield from _wait_for_bucket(asked.popleft())
            asked.append((part, bucket, *_ask(net, part, bucket)))
        while asked:
            yield from _wait_for_bucket(asked.popleft())
    finally:
        for part, *_ in asked:  # the caller stopped early: abort transfers in flight
            _close(part)


def _ask(net: Any, part: Part, bucket: Sequence[Entry]) -> tuple[Tensor, Arrived]:
    address, secret, turn = part.buffer
    with _named(part):
        if address not in _open:
            _open[address] = NcclConnection(net, address, secret)
        return _open[address].ask(turn, bucket[0].offset, bucket[-1].offset + size_of(bucket[-1]))


def _wait_for_bucket(
    asked: tuple[Part, Sequence[Entry], Tensor, Arrived],
) -> Iterator[tuple[str, Tensor]]:
    part, bucket, buffer, arrived = asked
    with _named(part):
        _open[part.buffer[0]].wait(arrived)
    for entry in bucket:
        yield entry.name, view(buffer, entry, bucket[0].offset)


@contextmanager
def _named(part: Part) -> Iterator[None]:
    """Turn errors into RunError with the rank's address, and close the connection to that rank.

    Raises:
        RunError: the transfer failed.
    """
    try:
        yield
    except (OSError, RuntimeError, RunError) as error:
        _close(part)
        (host, port, *_), *_ = part.buffer
        raise RunError(f"weights from the trainer's rank at {host}:{port}: {error}") from error


def _close(part: Part) -> None:
    if part.buffer[0] in _open:
        _open.pop(part.buffer[0]).close()


def _buckets(part: Part) -> Iterator[list[Entry]]:
    bucket: list[Entry] = []
    for entry in part.entries:
        if bucket and entry.offset - bucket[0].offset >= BUCKET:
            yield bucket
            bucket = []
        bucket.append(entry)
    yield bucket


def _process_label() -> str:
    """Name this process for the trainer's log."""
    actor, rank = (
        os.environ.get("FORGEDSL_ACTOR", "a process"),
        os.environ.get("FORGEDSL_RANK", "0"),
    )
    return f"{actor}, rank {rank}, pid {os.getpid()} on {own_address()}"


def make_transport(name: str, net: Any) -> Transport:
    """Make a transport over a module that moves the bytes."""
    return Transport(
        name=name, buffers=partial(NcclBuffers, net), open=partial(receive, net), shared=True
    )


TRANSPORT = make_transport("nccl", nccl)
