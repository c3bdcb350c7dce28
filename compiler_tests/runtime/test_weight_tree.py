"""Weights that hosts hand on: who takes them from whom, and what happens without the one before."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from forgedsl.transports import Spot, row
from forgedsl_runtime.temporary_files import SHM, remove_buffers
from forgedsl_runtime.transports import tcp, tree
from forgedsl_runtime.transports.base import Manifest, Sender
from forgedsl_runtime.transports.registry import open_weights, transport

KEY = f"test-tree-{os.getpid()}"
SIZE = 3 << 20
"""floats: several times what is handed on at once"""
REPLICA = """
import pickle, sys
from forgedsl_runtime.transports import tree
from forgedsl_runtime.transports.registry import open_weights

print(pickle.dumps(tree.relay().address).hex(), flush=True)
for line in sys.stdin:
    manifest = pickle.loads(bytes.fromhex(line))
    print(sum(value.double().sum().item() for _, value in open_weights(manifest)), flush=True)
tree.close()
"""


@contextmanager
def replica(name: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", REPLICA], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"FORGEDSL_ACTOR": name, "FORGEDSL_RANK": "0"},
    ) as process:  # fmt: skip
        yield process
        assert process.stdin is not None
        process.stdin.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def started(name: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A replica, and where its relay is asked."""
    with replica(name) as process:
        yield process, pickle.loads(bytes.fromhex(said(process)))


def load(process: subprocess.Popen[str], manifest: Manifest) -> float:
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(manifest).hex() + "\n")
    process.stdin.flush()
    return float(said(process))


@pytest.fixture
def sender() -> Iterator[Sender]:
    made = Sender(transport("tree"), KEY, torch.float32)
    yield made
    made.close()
    remove_buffers(KEY)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process, as a replica that has received nothing yet."""
    monkeypatch.setattr(tree, "_taken", [])
    monkeypatch.setattr(tree, "_relay", [])
    yield
    tree.close()


def test_two_hosts_take_weights_from_the_trainer_and_two_from_each_of_those() -> None:
    hosts = [2, 0, 1, 1, 3, 4, 5, 6]
    grown = tree.plan_tree(0, "gen", [(f"g{i}", host, i) for i, host in enumerate(hosts)])
    assert grown.first == {2: "g0", 0: "g1", 1: "g2", 3: "g4", 4: "g5", 5: "g6", 6: "g7"}
    assert grown.parents == {3: 2, 4: 2, 5: 1, 6: 1}


@pytest.mark.parametrize("hosts", [[0], [1], [0, 1, 1], [1, 2, 3], [1, 2, 3, 0, 4, 5, 6, 7]])
def test_a_plan_counts_the_copies_that_the_trainers_host_sends(hosts: list[int]) -> None:
    grown = tree.plan_tree(0, "gen", [(f"g{i}", host, i) for i, host in enumerate(hosts)])
    sent = [host for host in grown.first if host and host not in grown.parents]
    ends = [Spot(host=host, gpus=(), procs=1) for host in (0, *hosts)]
    assert len(sent) == row("tree").copies(ends[0], ends[1:])


@pytest.mark.full
def test_the_trainer_sends_two_copies_to_five_replicas_on_three_hosts(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    plain = tcp.send_buffer

    def counted(stream: socket.socket, part: memoryview) -> None:
        sent.append(len(part))
        plain(stream, part)

    monkeypatch.setattr(tcp, "send_buffer", counted)
    hosts = [1, 1, 2, 3, 3]
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(f"g{i}")) for i in range(len(hosts))]
        addresses = [pickle.loads(bytes.fromhex(said(each))) for each in replicas]
        names = [f"g{i}" for i in range(len(hosts))]
        grown = tree.plan_tree(0, "gen", list(zip(names, hosts, addresses, strict=True)))
        for version in range(3):
            state = {"a": torch.rand(SIZE), "b": torch.rand(7)}
            manifest = replace(sender.publish(state, version), tree=grown)
            for each in replicas:
                assert each.stdin is not None
                each.stdin.write(pickle.dumps(manifest).hex() + "\n")
                each.stdin.flush()
            sums = [float(said(each)) for each in replicas]
            wanted = sum(value.double().sum().item() for value in state.values())
            assert sums == [pytest.approx(wanted, rel=1e-12)] * len(hosts)
        assert sum(sent) == 3 * 2 * manifest.num_bytes
    assert not list(SHM.glob(f"forgedsl-{KEY}-*"))


@pytest.mark.full
def test_a_host_holds_two_versions_whoever_is_its_first(sender: Sender) -> None:
    """As many as `plan/capacity.py` counts."""
    versions = itertools.count()

    def held(*replicas: tuple[str, subprocess.Popen[str], Any], more: int = 3) -> int:
        """Copies in shared memory after so many versions; each file is whole in memory."""
        grown = tree.plan_tree(0, "gen", [(name, 1, address) for name, _, address in replicas])
        for version in itertools.islice(versions, more):
            manifest = replace(sender.publish({"a": torch.ones(SIZE)}, version), tree=grown)
            for _, process, _ in replicas:
                assert load(process, manifest) == SIZE
        files = [os.stat(path) for path in SHM.glob(f"forgedsl-{KEY}-tree-*")]
        return sum(file.st_blocks * 512 for file in files) // (4 * SIZE)

    with started("a") as a, started("b") as b:
        assert held(("a", *a), ("b", *b), more=1) == 2, "room for both is found at the first"
        assert held(("a", *a), ("b", *b)) == 2
        a[0].kill()
        assert held(("b", *b)) == 2
        with started("a") as again:
            assert held(("a", *again), ("b", *b)) == 2


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.usefixtures("fresh")
def test_a_replica_that_started_since_takes_the_newest_weights_and_clears_nobodys(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    """Its manifest was made when it was dead; another such has files of no host, too."""
    monkeypatch.setenv("FORGEDSL_ACTOR", "fresh")
    monkeypatch.setenv("FORGEDSL_RANK", rank)
    others = SHM / f"forgedsl-{KEY}-tree-gen--1-1-0"
    others.touch()
    state = {"a": torch.rand(SIZE)}
    grown = tree.plan_tree(0, "gen", [("b", 1, None)])
    ((_, value),) = open_weights(replace(sender.publish(state, 1), tree=grown))
    torch.testing.assert_close(value, state["a"], rtol=0, atol=0)
    assert others.exists()


@pytest.mark.parametrize("given", ["nothing", "half"])
@pytest.mark.usefixtures("fresh")
def test_who_hears_no_more_from_the_one_before_has_the_rest_from_the_trainer(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    asked: list[int] = []
    plain = tcp.send_buffer
    monkeypatch.setattr(
        tcp, "send_buffer", lambda stream, part: (asked.append(len(part)), plain(stream, part))
    )
    monkeypatch.setenv("FORGEDSL_ACTOR", "child")
    state = {"a": torch.rand(SIZE)}
    manifest = sender.publish(state, 1)
    whole = memoryview(state["a"].numpy()).cast("B")
    with dying(whole[: (4 << 20) if given == "half" else 0]) as address:
        grown = tree.plan_tree(0, "gen", [("a", 1, address), ("b", 2, None), ("child", 3, None)])
        ((_, value),) = open_weights(replace(manifest, tree=grown))
    torch.testing.assert_close(value, state["a"], rtol=0, atol=0)
    assert asked == [manifest.num_bytes - ((4 << 20) if given == "half" else 0)]


@pytest.mark.usefixtures("fresh")
def test_ranks_that_each_send_a_part_are_asked_one_after_the_other(sender: Sender) -> None:
    second = Sender(transport("tree"), f"{KEY}-1", torch.float32)
    states = {"a": torch.rand(SIZE)}, {"b": torch.rand(5), "c": torch.rand(7)}
    one, two = sender.publish(states[0], 1), second.publish(states[1], 1)
    found = dict(open_weights(replace(one, parts=(*one.parts, *two.parts))))
    for name, value in (states[0] | states[1]).items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    second.close()


@contextmanager
def dying(part: memoryview) -> Iterator[Any]:
    """The relay of a host that dies when it has handed on so much."""
    with socket.create_server(("127.0.0.1", 0)) as listens:

        def serve() -> None:
            stream, _ = listens.accept()
            with stream:
                tcp.read(stream, tcp.SECRET + tree.ASKED.size)
                stream.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listens.getsockname(), bytes(tcp.SECRET)
        thread.join()


@pytest.mark.usefixtures("fresh")
def test_a_replica_whose_sibling_is_gone_takes_them_itself(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEDSL_ACTOR", "second")
    state = {"a": torch.rand(SIZE)}
    manifest: Manifest = sender.publish(state, 1)
    with dying(memoryview(b"")) as address:
        grown = tree.plan_tree(0, "gen", [("first", 1, address), ("second", 1, None)])
        ((_, value),) = open_weights(replace(manifest, tree=grown))
    torch.testing.assert_close(value, state["a"], rtol=0, atol=0)
