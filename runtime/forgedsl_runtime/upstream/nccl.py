"""NCCL communicator of two processes, independent of the process groups of torch and vLLM.

    sender: invite() --128 bytes--> receiver      both: Wire(rank, invitation, wait)

torch's ProcessGroupNCCL kills the process at a timeout (its watchdog), and its creation blocks
without a deadline if the other side dies. A non-blocking communicator can be aborted at any time:
its state is polled here between calls of `wait`, which raises if the other side is gone or silent.
A failure costs only this communicator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forgedsl.errors import RunError

INVITATION = 128
"""bytes of the id by which two processes find each other"""
CTAS = 8
"""largest number of thread blocks of a kernel, so that a waiting send leaves the GPU to training"""
IN_PROGRESS, UINT8, MAGIC, UNDEFINED = 7, 1, 0xCAFEBEEF, -(2**31)

Arrived = Callable[[], bool]
"""returns True if a posted tensor has been sent or received"""


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * INVITATION),)


class _Config(ctypes.Structure):
    """`ncclConfig_t` of NCCL 2.17; newer versions read only the first `size` bytes."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int), ("cga", ctypes.c_int), ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int), ("net", ctypes.c_char_p),
    )  # fmt: skip


def _library() -> Any:
    """Load the NCCL library of torch, or of the system."""
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
    """Return the id with which the receiver joins; the sender listens from now on.

    Raises:
        RunError: there is no NCCL library, or it failed.
    """
    made, library = _Id(), _library()
    if code := library.ncclGetUniqueId(ctypes.byref(made)):
        raise RunError(f"NCCL: {library.ncclGetErrorString(code).decode()}")
    return bytes(made)


def device() -> torch.device:
    """Return the device on which this thread receives tensors."""
    return torch.device("cuda", torch.cuda.current_device())


class Wire:
    """One end of a communicator of two: rank 0 sends, rank 1 receives, on its own CUDA stream."""

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
        """Send bytes that are complete; the current stream is not waited for."""
        return self._post(self._nccl.ncclSend, part, wait)

    def receive(self, into: Tensor, wait: Callable[[], None]) -> Arrived:
        """Receive into memory, after this thread's current stream has finished using it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        return self._post(self._nccl.ncclRecv, into, wait)

    def abort(self) -> None:
        """Abort transfers in flight and the communicator."""
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
        """Wait until the communicator's last host-side operation is done.

        Raises:
            RunError: it failed.
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
