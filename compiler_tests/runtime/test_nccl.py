"""Transport `nccl`: what is NCCL's own needs two GPUs (test_weight_sync.py); all else runs here
over gloo: who sends what to whom, in buckets, and what a death costs."""

from __future__ import annotations

import ctypes
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gloo_wire
import pytest
import torch
from meeting import Meeting

from forgedsl.errors import RunError
from forgedsl_runtime.transports import nccl
from forgedsl_runtime.transports.base import Manifest, Ranks, Sender
from forgedsl_runtime.upstream import nccl as upstream

ENGINE = f"""
import os, pickle, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gloo_wire
from forgedsl_runtime.transports import nccl

nccl.BUCKET = 1 << 12
for line in sys.stdin:
    weights = gloo_wire.transport().open(pickle.loads(bytes.fromhex(line)))
    if sys.argv[1:] == ["dies"]:
        next(weights)
        os._exit(9)
    print([(name, value.double().sum().item()) for name, value in weights], flush=True)
"""


@contextmanager
def engine(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        yield process
        assert process.stdin is not None
        process.stdin.close()


def told(process: subprocess.Popen[str], manifest: Manifest) -> Any:
    """What an engine makes of published weights; None if it dies over them."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(manifest).hex() + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return eval(line) if line else None


def weights(draw: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(draw)
    return {f"w{i}": torch.randn(30 + i, 50) for i in range(8)} | {"b": torch.randn(7)}


def sums(state: dict[str, torch.Tensor]) -> list[tuple[str, float]]:
    return [(name, value.bfloat16().double().sum().item()) for name, value in state.items()]


def test_an_engine_that_dies_costs_no_other_and_a_new_one_takes_the_newest_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = Sender(gloo_wire.transport(), "run", torch.bfloat16)
    with engine() as lives, engine("dies") as dies, engine() as starts:
        for version in range(3):
            state = weights(version)
            manifest = sender.publish(state, version)
            assert told(lives, manifest) == sums(state)
        assert told(dies, manifest) is None
        assert told(lives, manifest) == told(starts, manifest) == sums(state)
    sender.close()
    assert f"pid {lives.pid}" not in caplog.text


def test_an_engine_takes_the_parts_of_all_ranks() -> None:
    state, meeting = weights(1), Meeting(2)
    ranks = [Ranks(rank=i, world=2, gather_objects=meeting.together(i)) for i in range(2)]
    senders = [Sender(gloo_wire.transport(), "run", torch.bfloat16, ranks=r) for r in ranks]
    manifest, _ = meeting.run(lambda rank: senders[rank].publish(state, 1))
    with engine() as process:
        assert sorted(told(process, manifest)) == sorted(sums(state))
    for sender in senders:
        sender.close()


def test_what_nobody_sends_any_more_names_the_address() -> None:
    sender = Sender(gloo_wire.transport(), "run", torch.bfloat16)
    manifest = sender.publish(weights(1), 1)
    (host, port), *_ = manifest.parts[0].buffer
    sender.close()
    with pytest.raises(RunError, match=rf"weights from the trainer's rank at {host}:{port}: "):
        list(gloo_wire.transport().open(manifest))


def test_an_engine_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "GLANCE", 10)
    monkeypatch.setattr(nccl.tcp, "SECONDS", 0.05)
    here, _there = socket.socketpair()
    with pytest.raises(RunError, match="the receiver took no data for 0 s"):
        nccl._next_request(here, nccl.deque([lambda: False]))


def test_an_engine_that_goes_in_the_middle_is_told_of() -> None:
    here, there = socket.socketpair()
    there.close()
    assert nccl._next_request(here, nccl.deque([lambda: True])) is None
    with pytest.raises(RunError, match="disconnected during the transfer"):
        nccl._next_request(here, nccl.deque([lambda: False]))


def test_what_is_written_waits_for_no_send(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: waits.append("copies"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("sends"))
    nccl.NcclBuffers(gloo_wire, "run").wait_for_copies()
    assert waits == ["copies"]


class Library:
    """What NCCL answers, of which nothing moves: `states` one after the other."""

    def __init__(self, states: list[int]) -> None:
        self.states, self.calls = states, []  # type: ignore[var-annotated]

    def ncclCommInitRankConfig(self, comm: Any, *_: Any) -> int:
        comm._obj.value = 1
        return upstream.IN_PROGRESS

    def ncclCommGetAsyncError(self, _: Any, state: Any) -> None:
        state._obj.value = self.states.pop(0)

    def ncclCommAbort(self, comm: ctypes.c_void_p) -> None:
        self.calls.append(comm.value)

    ncclGetErrorString = staticmethod(lambda code: f"error {code}".encode())
    ncclGetLastError = staticmethod(lambda comm: b"")


def joined(monkeypatch: pytest.MonkeyPatch, library: Library, wait: Callable[[], None]) -> None:
    monkeypatch.setattr(upstream, "_library", lambda: library)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    upstream.Wire(1, bytes(upstream.INVITATION), wait)


def test_a_communicator_is_waited_for_until_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    library, waits = Library([7, 7, 0]), [0]
    joined(monkeypatch, library, lambda: waits.append(0))
    assert (len(waits), library.calls) == (3, [])


def test_a_communicator_that_nobody_waits_for_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        raise RunError("the other side has disconnected")

    library = Library([7, 7])
    with pytest.raises(RunError, match="has disconnected"):
        joined(monkeypatch, library, wait)
    assert library.calls == [1]


def test_an_error_of_nccl_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([6])
    with pytest.raises(RunError, match="NCCL: error 6"):
        joined(monkeypatch, library, lambda: None)
    assert library.calls == [1]
