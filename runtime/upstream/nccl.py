"""NCCL: a communicator of two processes, apart from the process groups of torch and vLLM.

    sender: invite() --128 bytes--> receiver      both: Wire(rank, invitation, wait)

torch's ProcessGroupNCCL ends the process when somebody is late (its watchdog), and to make one
blocks, without a deadline, when the other side dies over it. A communicator that does not block can
be given up at any moment: what it waits for is asked for here, between two calls of `wait`, which
raises when there is nothing to wait for any more. Whose communicator it is loses no more than it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forgedsl.errors import RunError

INVITATION = 128
"""bytes of what two processes find each other by"""
CTAS = 8
"""blocks of a kernel at most: a send that waits for its receiver leaves the GPU to the training"""
IN_PROGRESS, UINT8, MAGIC, UNDEFINED = 7, 1, 0xCAFEBEEF, -(2**31)

Arrived = Callable[[], bool]
"""whether a tensor that was posted has been sent, or received"""


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * INVITATION),)


class _Config(ctypes.Structure):
    """`ncclConfig_t` of NCCL 2.17; a newer one takes as much of it as `size` says."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int), ("cga", ctypes.c_int), ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int), ("net", ctypes.c_char_p),
    )  # fmt: skip


def _library() -> Any:
    """The NCCL that torch has brought, or the system's."""
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise RunError(f"transport nccl needs NCCL, which torch brings on GPUs: {error}") from error
    library.ncclGetErrorString.restype = library.ncclGetLastError.restype = ctypes.c_char_p
    moved = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
        ctypes.c_void_p,
    )  # fmt: skip
    library.ncclSend.argtypes = library.ncclRecv.argtypes = moved
    return library


def invite() -> bytes:
    """What the receiver joins by; the sender listens for it from now on."""
    made, library = _Id(), _library()
    if code := library.ncclGetUniqueId(ctypes.byref(made)):
        raise RunError(f"NCCL: {library.ncclGetErrorString(code).decode()}")
    return bytes(made)


def device() -> torch.device:
    """Where the tensors lie that this thread receives."""
    return torch.device("cuda", torch.cuda.current_device())


class Wire:
    """One end of a communicator of two: rank 0 sends, rank 1 receives, on a stream of their own."""

    def __init__(self, rank: int, invitation: bytes, wait: Callable[[], None]) -> None:
        self._nccl, self._comm, self._peer = _library(), ctypes.c_void_p(), 1 - rank
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        config = _Config(
            size=ctypes.sizeof(_Config), magic=MAGIC, version=21700, blocking=0, cga=UNDEFINED,
            min_ctas=UNDEFINED, max_ctas=CTAS,
        )  # fmt: skip
        made = self._nccl.ncclCommInitRankConfig(
            ctypes.byref(self._comm), 2, _Id.from_buffer_copy(invitation), rank,
            ctypes.byref(config),
        )  # fmt: skip
        try:
            self._settle(made, wait)
        except BaseException:
            self.abort()
            raise

    def send(self, part: Tensor, wait: Callable[[], None]) -> Arrived:
        """Send bytes that are there already: the training's stream is not waited for."""
        return self._post(self._nccl.ncclSend, part, wait)

    def receive(self, into: Tensor, wait: Callable[[], None]) -> Arrived:
        """Receive, once what this thread's stream still does with that memory is done."""
        self._stream.wait_stream(torch.cuda.current_stream())
        return self._post(self._nccl.ncclRecv, into, wait)

    def abort(self) -> None:
        """Give up what is under way, and the communicator."""
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            self._nccl.ncclCommAbort(comm)

    def _post(self, function: Any, tensor: Tensor, wait: Callable[[], None]) -> Arrived:
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        where, size = tensor.data_ptr(), tensor.numel()
        self._settle(function(where, size, UINT8, self._peer, self._comm, stream), wait)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)

        def arrived() -> bool:
            self._settle(0, wait)
            return bool(event.query())  # type: ignore[no-untyped-call]

        return arrived

    def _settle(self, code: int, wait: Callable[[], None]) -> None:
        """Return when the communicator has done on the host what it was asked for last.

        Raises:
            RunError: it cannot.
        """
        state = ctypes.c_int(code)
        if code in (0, IN_PROGRESS) and self._comm:
            self._nccl.ncclCommGetAsyncError(self._comm, ctypes.byref(state))
        while state.value == IN_PROGRESS:
            wait()
            self._nccl.ncclCommGetAsyncError(self._comm, ctypes.byref(state))
        if state.value:
            words = self._nccl.ncclGetErrorString(state.value), self._nccl.ncclGetLastError(None)
            raise RunError("NCCL: " + ": ".join(word.decode().strip() for word in words if word))
