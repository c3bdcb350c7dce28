"""Weights go through shared memory unchanged, and two buffers take turns."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from meeting import Meeting
from test_family_logits import printed
from torch.multiprocessing import reductions

from forgedsl_runtime.temporary_files import SHM
from forgedsl_runtime.transports import ipc, registry
from forgedsl_runtime.transports.base import Ranks, Sender, Transport, open_by_attaching
from forgedsl_runtime.transports.registry import open_weights, transport


def test_round_trip_and_alternation() -> None:
    publisher = Sender(transport("shm"), "test-round-trip", torch.float32)
    try:
        first = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16()}
        second = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16()}
        one, two = publisher.publish(first, 1), publisher.publish(second, 2)
        assert one.parts[0].buffer != two.parts[0].buffer
        for manifest, state in ((one, first), (two, second)):
            for name, value in open_weights(manifest):
                assert value.dtype is torch.float32
                torch.testing.assert_close(value, state[name].float(), rtol=0, atol=0)
    finally:
        publisher.close()
    assert not list(SHM.glob("forgedsl-test-round-trip-*"))


def test_each_rank_may_keep_and_send_a_part_of_the_weights() -> None:
    state = {f"w{i}": torch.randn(30 + i, 50) for i in range(8)}
    shared, meeting = replace(transport("shm"), shared=True), Meeting(2)
    ranks = [Ranks(rank=i, world=2, gather_objects=meeting.together(i)) for i in range(2)]
    senders = [Sender(shared, "parts", torch.float32, ranks=r) for r in ranks]
    one, two = meeting.run(lambda rank: senders[rank].publish(state, 1))
    assert one == two
    assert one.digests is not None
    assert one.digests.keys() == state.keys()
    first, second = (part.num_bytes for part in one.parts)
    assert first == pytest.approx(second, rel=0.2)
    for name, value in open_weights(one):
        torch.testing.assert_close(value, state.pop(name), rtol=0, atol=0)
    assert not state
    for sender in senders:
        sender.close()


def test_a_stage_of_a_pipeline_keeps_and_sends_its_own_weights() -> None:
    state = {name: torch.randn(4, 5) for name in ("embed", "first", "second", "norm")}
    own = [{n: state[n] for n in names}
           for names in (("embed", "first"), ("embed", "second", "norm"))]  # fmt: skip
    meeting = Meeting(2)
    ranks = [Ranks(rank=i, world=2, stages=2, gather_objects=meeting.together(i)) for i in (0, 1)]
    senders = [Sender(transport("shm"), "stages", torch.float32, ranks=r) for r in ranks]
    one, two = meeting.run(lambda rank: senders[rank].publish(own[rank], 1))
    assert one == two
    assert one.digests is not None
    assert one.digests.keys() == state.keys()
    assert [len(part.entries) for part in one.parts] == [2, 2]
    for name, value in open_weights(one):
        torch.testing.assert_close(value, state.pop(name), rtol=0, atol=0)
    assert not state
    for sender in senders:
        sender.close()


RECEIVER = """
import pickle, sys, torch
from forgedsl_runtime.transports.registry import open_weights

for line in sys.stdin:
    manifest = pickle.loads(bytes.fromhex(line))
    print(sum(value.double().sum().item() for _, value in open_weights(manifest)), flush=True)
"""


def test_engines_on_other_hosts_take_weights_over_a_connection() -> None:
    sender = Sender(transport("tcp"), "test-tcp", torch.bfloat16)
    state = {"a": torch.randn(3000, 500), "b": torch.randn(7)}
    manifest = sender.publish(state, 3)
    sums = [value.double().sum().item() for _, value in open_weights(manifest)]
    assert sums == [value.bfloat16().double().sum().item() for value in state.values()]
    (part,) = manifest.parts
    address, secret, turn = part.buffer
    stranger = replace(part, buffer=(address, bytes(len(secret)), turn))
    with pytest.raises(
        ConnectionError, match="the sender has disconnected"
    ):  # who does not know it
        list(open_weights(replace(manifest, parts=(stranger,))))
    sender.close()
    with pytest.raises(ConnectionError):
        list(open_weights(manifest))


@pytest.mark.parametrize(("way", "gpu"), [("ipc", 0), ("peer", 1), ("nccl", 1)])
def test_another_process_reads_device_memory(way: str, gpu: int) -> None:
    if torch.cuda.device_count() <= gpu:
        pytest.skip(f"needs {gpu + 1} GPU")
    sender = Sender(transport(way), f"test-{way}", torch.bfloat16)
    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
    ) as receiver:  # fmt: skip
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        for version in range(5):
            state = {"a": torch.randn(300, 5, device="cuda"), "b": torch.randn(7, device="cuda")}
            manifest = sender.publish(state, version)
            receiver.stdin.write(pickle.dumps(manifest).hex() + "\n")
            receiver.stdin.flush()
            wanted = sum(v.bfloat16().double().sum().item() for v in state.values())
            assert float(receiver.stdout.readline()) == pytest.approx(wanted, rel=1e-9)
        receiver.stdin.close()
    sender.close()


def test_memory_of_any_gpu_is_mapped_into_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank of a trainer calls its GPU 1, which an engine with one GPU does not have."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    words = inspect.signature(reductions.rebuild_cuda_tensor).parameters
    sent = tuple(1 if word == "storage_device" else word for word in words)
    found = ipc.attach((("of another process", 0), (lambda *arguments: arguments, sent)), 8)
    assert dict(zip(words, found, strict=True))["storage_device"] == 0


def test_a_transport_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over files of a folder, as docs/design/transports.md says to add one."""

    class Files:
        def __init__(self, run_key: str) -> None:
            self.key = run_key

        def make(self, turn: int, num_bytes: int) -> tuple[torch.Tensor, str]:
            path = tmp_path / f"{self.key}-{turn}"
            return attach(str(path), num_bytes), str(path)

        def wait_for_copies(self) -> None:
            pass

        def close(self) -> None:
            for path in tmp_path.iterdir():
                path.unlink()

    def attach(path: str, num_bytes: int) -> torch.Tensor:
        return torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8)

    files = Transport(name="files", buffers=Files, open=open_by_attaching(attach))
    monkeypatch.setattr(registry, "TRANSPORTS", (*registry.TRANSPORTS, files))
    sender = Sender(registry.transport("files"), "run", torch.float32)
    manifest = sender.publish({"a": torch.arange(6.0)}, 1)
    ((name, value),) = registry.open_weights(manifest)
    assert name == "a"
    assert value.tolist() == [0, 1, 2, 3, 4, 5]
    sender.close()
    assert not list(tmp_path.iterdir())


def test_tensors_in_parts_are_gathered_whole() -> None:
    pytest.importorskip("torchtitan")
    layouts = ("rows", "columns", "copies", "experts", "alone")
    assert printed("gathered_parts.py", *layouts) == dict.fromkeys(layouts, True)
