"""Transport `tcp`: from the trainer's memory over a connection, also to engines on other hosts.

    trainer: buffer, a thread listens --(address, port, secret, turn)--> engine: connects, reads

If an engine dies during a transfer, only its own connection ends. When it is restarted, it reads
the newest weights.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.hosts.addresses import own_address
from forgedsl_runtime.transports.base import Transport, open_by_attaching

SECONDS = 60.0
"""a transfer fails if no data comes for this long"""
SECRET = 16


class Served:
    """Two buffers in this process's memory, and the threads that send them."""

    device = torch.device("cpu")

    def __init__(self, run_key: str) -> None:
        self._buffers: dict[int, Tensor] = {}
        self._secret = secrets.token_bytes(SECRET)
        self._socket: socket.socket | None = None

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        if self._socket is None:
            self._socket = socket.create_server((own_address(), 0))
            threading.Thread(target=self._listen, name="weights", daemon=True).start()
        self._buffers[turn] = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        return self._buffers[turn], (self._socket.getsockname(), self._secret, turn)

    def wait_for_copies(self) -> None:
        if torch.cuda.is_available():  # wait for the copies only, which are on this stream
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # wakes the thread that waits in `accept`
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._buffers.clear()

    def _listen(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):  # closed
            while True:
                stream, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with stream, contextlib.suppress(OSError):  # the receiver has gone
            stream.settimeout(SECONDS)
            asked = read(stream, SECRET + 1)
            if hmac.compare_digest(asked[:SECRET], self._secret):
                self._answer(stream, asked[SECRET])

    def _answer(self, stream: socket.socket, turn: int) -> None:
        send_buffer(stream, bytes_of(self._buffers[turn]))


def send_buffer(stream: socket.socket, part: memoryview) -> None:
    """Send a buffer; a benchmark replaces this function to limit the bandwidth."""
    stream.sendall(part)


_received: dict[int, Tensor] = {}
"""by size: receive buffers; one is copied into the engine before the next read"""


def attach(handle: Any, num_bytes: int) -> Tensor:
    """Read the sender's buffer of this turn."""
    address, secret, turn = handle
    if num_bytes not in _received:
        _received[num_bytes] = torch.empty(num_bytes, dtype=torch.uint8)
    buffer = _received[num_bytes]
    with socket.create_connection(tuple(address), SECONDS) as stream:
        stream.sendall(secret + bytes([turn]))
        read_into(stream, bytes_of(buffer))
    return buffer


def bytes_of(buffer: Tensor) -> memoryview:
    """View a buffer of this process as bytes."""
    array: Any = buffer.numpy()
    return memoryview(array)


def read(stream: socket.socket, count: int) -> bytes:
    """Read `count` bytes.

    Raises:
        OSError: the stream ends before.
    """
    found = bytearray(count)
    read_into(stream, memoryview(found))
    return bytes(found)


def read_into(stream: socket.socket, into: memoryview) -> None:
    """Fill a buffer from a stream.

    Raises:
        OSError: the stream ends before.
    """
    while into:
        if not (count := stream.recv_into(into, min(len(into), 1 << 22))):
            raise ConnectionError(
                f"the transfer of weights ended {len(into)} bytes early: the "
                "sender has disconnected"
            )
        into = into[count:]


TRANSPORT = Transport(name="tcp", buffers=Served, open=open_by_attaching(attach))
