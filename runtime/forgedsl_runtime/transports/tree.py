"""Transport `tree`: as `tcp`, but hosts that receive weights pass them on to other hosts.

    trainer --> first replica of a host --> first replicas of two other hosts --> ...
                        '-- shared memory --> other processes of its host

A relay passes bytes on as they arrive, so a path over many hosts takes hardly longer than one over
few. Engines go on sampling during the transfer. If the sender of a relay is silent, the relay gets
the remaining bytes from the trainer.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from forgedsl.errors import RunError
from forgedsl.transports import BRANCHES
from forgedsl_runtime.hosts.addresses import own_address
from forgedsl_runtime.transports import tcp
from forgedsl_runtime.transports.base import (
    Manifest,
    Transport,
    Tree,
    Weights,
    buffer_path,
    view,
)
from forgedsl_runtime.transports.shm import mapped, reserve

FROM = struct.Struct("!Q")
"""offset of the first requested byte"""
ASKED = struct.Struct("!QQ?")
"""request to a relay: version, first byte, and True to get only the path of the weights in shared
memory"""
CHUNK = 1 << 22


class Source(tcp.Served):
    """The trainer's buffers."""

    def __init__(self, run_key: str) -> None:
        super().__init__(run_key)
        self._run_key = run_key

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        buffer, handle = super().make(turn, num_bytes)
        return buffer, (*handle, self._run_key)

    def _answer(self, stream: socket.socket, turn: int) -> None:
        (begin,) = FROM.unpack(tcp.read(stream, FROM.size))
        tcp.send_buffer(stream, tcp.bytes_of(self._buffers[turn])[begin:])


@dataclass(slots=True)
class Held:
    """A version in shared memory, `filled` up to some byte."""

    version: int
    name: str
    buffer: Tensor
    filled: int = 0


class Relay:
    """Receives weights in this process and passes them on; keeps the last two versions."""

    def __init__(self) -> None:
        self._socket = socket.create_server((own_address(), 0))
        self._secret = secrets.token_bytes(tcp.SECRET)
        self._held: dict[int, Held] = {}
        self._changed = threading.Condition()
        self.address = (self._socket.getsockname(), self._secret)
        threading.Thread(target=self._listen, name="relay", daemon=True).start()

    def take(self, manifest: Manifest, before: Any, place: str) -> Tensor:
        """Receive a version from the relay `before` this one, or else from the trainer. `place` is
        part of the names of its files.

        Raises:
            OSError: neither could send it.
        """
        held = self._receive_buffer(manifest, place)
        if before is not None:
            with (
                contextlib.suppress(OSError),  # it is gone: get the rest from the trainer
                ask(before, manifest.version, held.filled) as stream,
            ):
                self._fill(held, stream, manifest.num_bytes)
        end = 0
        for part in manifest.parts:  # one connection per sending rank
            begin, end = end, end + part.num_bytes
            if held.filled < end:
                address, secret, turn, _ = part.buffer
                with socket.create_connection(tuple(address), tcp.SECONDS) as stream:
                    stream.sendall(secret + bytes([turn]) + FROM.pack(held.filled - begin))
                    self._fill(held, stream, end)
        return held.buffer

    def _receive_buffer(self, manifest: Manifest, place: str) -> Held:
        version, num_bytes = manifest.version, manifest.num_bytes
        *_, turn, run_key = manifest.parts[0].buffer
        if not self._held:
            paths = [buffer_path(run_key, f"{place}-{os.getpid()}-{each}") for each in (0, 1)]
            reserve(paths, num_bytes)
            self._held = {i: Held(-1, str(p), mapped(p, num_bytes)) for i, p in enumerate(paths)}
        old = self._held[turn]
        if old.version == version:
            return old
        held = Held(version, old.name, old.buffer)
        with self._changed:
            self._held[turn] = held
            self._changed.notify_all()
        return held

    def _fill(self, held: Held, stream: socket.socket, last: int) -> None:
        into = tcp.bytes_of(held.buffer)
        while held.filled < last:
            end = min(last, held.filled + CHUNK)
            tcp.read_into(stream, into[held.filled : end])
            with self._changed:
                held.filled = end
                self._changed.notify_all()

    def _listen(self) -> None:
        while True:
            stream, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with stream, contextlib.suppress(OSError):  # the receiver has gone, or this relay is closed
            stream.settimeout(tcp.SECONDS)
            if not hmac.compare_digest(tcp.read(stream, tcp.SECRET), self._secret):
                return
            version, sent, local = ASKED.unpack(tcp.read(stream, ASKED.size))
            held = self._wait_for_version(version)
            size = len(held.buffer)
            while sent < size:
                filled = self._wait(held, size if local else sent + 1)
                if not local:
                    tcp.send_buffer(stream, tcp.bytes_of(held.buffer)[sent:filled])
                sent = filled
            if local:
                stream.sendall(held.name.encode())

    def _wait_for_version(self, version: int) -> Held:
        """Wait until a version begins to arrive, and return it.

        Raises:
            TimeoutError: it did not.
        """

        def found() -> Held | None:
            return next((held for held in self._held.values() if held.version == version), None)

        with self._changed:
            if (held := self._changed.wait_for(found, tcp.SECONDS)) is None:
                raise TimeoutError
            return held

    def _wait(self, held: Held, count: int) -> int:
        """Wait until at least `count` bytes have arrived; return how many there are.

        Raises:
            TimeoutError: too few came.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: held.filled >= count, tcp.SECONDS):
                raise TimeoutError
            return held.filled

    def close(self) -> None:
        """Remove the files in shared memory; processes that have them open keep them."""
        with self._changed:
            for held in self._held.values():
                Path(held.name).unlink(missing_ok=True)
            self._held.clear()


def ask(address: Any, version: int, begin: int, *, local: bool = False) -> socket.socket:
    """Connect to a relay and request a version; return the stream."""
    (host, port, *_), secret = address
    stream = socket.create_connection((host, port), tcp.SECONDS)
    stream.sendall(secret + ASKED.pack(version, begin, local))
    return stream


def plan_tree(trainer: int, service: str, members: Sequence[tuple[str, int, Any]]) -> Tree:
    """Plan the tree that brings weights from the host of the trainer to all replicas of a service.
    `members` has (name, host, relay address) of each replica. The first replica of each host
    receives from the trainer or from another host's first replica. Each host sends to at most two
    others."""
    first: dict[int, str] = {}
    for name, host, _ in members:
        first.setdefault(host, name)
    parents: dict[int, int] = {}
    far = [host for host in first if host != trainer]
    for index, host in enumerate(far[BRANCHES:]):
        parents[host] = far[index // BRANCHES]
    return Tree(
        service=service, at={name: host for name, host, _ in members}, first=first, parents=parents,
        relays={name: address for name, _, address in members},
    )  # fmt: skip


_relay: list[Relay] = []
_shared: dict[str, Tensor] = {}
_taken: list[tuple[int, Tensor]] = []
"""the version received last, and its buffer"""


def relay() -> Relay:
    """Return the relay of this process; make it on the first call."""
    if not _relay:
        _relay.append(Relay())
    return _relay[0]


def fetch(manifest: Manifest) -> Tensor:
    """Return the buffer of a version; it is received once."""
    if not _taken or _taken[0][0] != manifest.version:
        _taken[:] = [(manifest.version, _receive_version(manifest))]
    return _taken[0][1]


def _receive_version(manifest: Manifest) -> Tensor:
    tree = manifest.tree or Tree()
    me, rank = os.environ.get("FORGEDSL_ACTOR", ""), os.environ.get("FORGEDSL_RANK", "0")
    host = tree.at.get(me, -1)
    first = tree.first.get(host, me)
    if (first != me or rank != "0") and first in tree.relays:
        with contextlib.suppress(OSError):  # it is gone
            return _map_from_sibling(tree.relays[first], manifest.version, manifest.num_bytes)
    before = tree.first.get(tree.parents.get(host, -1)) if first == me else None
    place = f"tree-{tree.service}-{host}"
    _shared.clear()
    # A process that was started after the tree was planned is not in it.
    if me in tree.at and first == me and rank == "0":
        _clear_others(buffer_path(manifest.parts[0].buffer[-1], place))
    try:
        return relay().take(manifest, tree.relays[before] if before else None, place)
    except OSError as error:
        (where, port, *_), *_ = manifest.parts[0].buffer
        raise RunError(f"weights from the trainer at {where}:{port}: {error}") from error


def _clear_others(place: Path) -> None:
    """Remove files of earlier first replicas of this host: two versions are enough."""
    for path in place.parent.glob(f"{place.name}-*"):
        if path.name.split("-")[-2] != str(os.getpid()):
            path.unlink(missing_ok=True)


def _map_from_sibling(address: Any, version: int, num_bytes: int) -> Tensor:
    """Map the weights that the first process of this host has received."""
    with ask(address, version, 0, local=True) as stream:
        name = b""
        while came := stream.recv(4096):
            name += came
    if not name:
        raise ConnectionError("the first process of this host has no weights yet")
    close()  # remove this process's own copies; it may have been the first of its host before
    path = name.decode()
    for gone in [each for each in _shared if not Path(each).exists()]:
        del _shared[gone]
    if path not in _shared:
        _shared[path] = mapped(Path(path), num_bytes)
    return _shared[path]


def opened(manifest: Manifest) -> Weights:
    """Yield all tensors from the buffer of the version."""
    buffer = fetch(manifest)
    for part in manifest.parts:
        for entry in part.entries:
            yield entry.name, view(buffer, entry)
        buffer = buffer[part.num_bytes :]


def close() -> None:
    """Remove everything of this process from shared memory."""
    for each in _relay:
        each.close()


TRANSPORT = Transport(name="tree", buffers=Source, open=opened, fetch=fetch)
