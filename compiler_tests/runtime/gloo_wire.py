"""What `nccl` does, over gloo: the same sender, receiver and buckets between processes on CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forgedsl_runtime.hosts.addresses import own_address
from forgedsl_runtime.transports import nccl, tcp
from forgedsl_runtime.upstream.nccl import INVITATION

_met: dict[int, Any] = {}
"""by port: where a sender waits for its receiver"""


def invite() -> bytes:
    store = dist.TCPStore(own_address(), 0, is_master=True, wait_for_workers=False)
    _met[store.port] = store
    return json.dumps([own_address(), store.port]).encode().ljust(INVITATION)


def device() -> torch.device:
    return torch.device("cpu")


class Wire:
    def __init__(self, rank: int, invitation: bytes, wait: Callable[[], None]) -> None:
        wait()
        host, port = json.loads(invitation)
        seconds = timedelta(seconds=tcp.SECONDS)
        store = _met.pop(port) if rank == 0 else dist.TCPStore(host, port, timeout=seconds)
        options: Any = dist.ProcessGroupGloo._Options()
        options._timeout = seconds
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_address())]
        self._group: Any = dist.ProcessGroupGloo(store, rank, 2, options)
        self._store, self._peer = store, 1 - rank

    def send(self, part: Tensor, wait: Callable[[], None]) -> Callable[[], bool]:
        self._group.send([part], self._peer, 0).wait(timedelta(seconds=tcp.SECONDS))
        return lambda: True

    def receive(self, into: Tensor, wait: Callable[[], None]) -> Callable[[], bool]:
        self._group.recv([into], self._peer, 0).wait(timedelta(seconds=tcp.SECONDS))
        return lambda: True

    def abort(self) -> None:
        self._group = None


def transport() -> Any:
    """To be put into the registry."""
    import sys

    return nccl.make_transport("gloo", sys.modules[__name__])
