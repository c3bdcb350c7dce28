"""Weights to many replicas on several hosts: with and without hosts that hand them on.

    sender on host 0, receivers on hosts 1 to 3 in turn; what leaves a host goes at --uplink MB/s

    python benchmarks/tree.py [--mib 100] [--uplink 100] [--replicas 1 2 4 8]

Each host is a name, each replica a process; all are on this machine. The uplink is limited in the
process that sends (`tcp.send_buffer`, 1 MiB after the other, all connections of a host together).
Seconds are from publishing until the last replica has the weights, medians of --rounds. `killed`:
the first replica of host 1 is killed as half of its time is over.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

HOSTS = 3
PIECE = 1 << 20


def limit(rate: float) -> None:
    """Send so many bytes a second from this process."""
    from forgedsl_runtime.transports import tcp

    lock, free = Lock(), [0.0]

    def send_buffer(stream: Any, part: memoryview) -> None:
        for begin in range(0, len(part), PIECE):
            piece = part[begin : begin + PIECE]
            with lock:
                free[0] = max(free[0], time.monotonic()) + len(piece) / rate
                end = free[0]
            time.sleep(max(0.0, end - time.monotonic()))
            stream.sendall(piece)

    tcp.send_buffer = send_buffer


def replica(name: str, rate: float, pipe: Connection) -> None:
    """A receiver: tells its relay, then a checksum for each manifest."""
    os.environ["FORGEDSL_ACTOR"], os.environ["FORGEDSL_RANK"] = name, "0"
    from forgedsl_runtime.transports import registry, tree

    limit(rate)
    pipe.send(tree.relay().address)
    while (manifest := pipe.recv()) is not None:
        pipe.send(sum(value.sum().item() for _, value in registry.open_weights(manifest)))
    tree.close()


def measure(way: str, count: int, given: argparse.Namespace, *, kill: bool = False) -> list[float]:
    import torch

    from forgedsl_runtime.temporary_files import remove_buffers
    from forgedsl_runtime.transports import registry, tree
    from forgedsl_runtime.transports.base import Sender

    context, rate = multiprocessing.get_context("spawn"), given.uplink * 1e6
    pipes, processes, members, key = [], [], [], f"bench{os.getpid()}"
    for index in range(count):
        ours, theirs = context.Pipe()
        name = f"replica{index}"
        process = context.Process(target=replica, args=(name, rate, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    for index, pipe in enumerate(pipes):
        members.append((f"replica{index}", 1 + index % HOSTS, pipe.recv()))
    limit(rate)
    sender = Sender(registry.transport(way), key, torch.float32)
    seconds = []
    for version in range(given.rounds + 1):
        state = {"w": torch.full((given.mib << 18,), float(version + 1))}
        manifest = sender.publish(state, version)
        manifest = (
            replace(manifest, tree=tree.plan_tree(0, "replica", members))
            if way == "tree"
            else manifest
        )
        began = time.monotonic()
        for pipe in pipes:
            pipe.send(manifest)
        waited = pipes
        if kill and version == 1:
            time.sleep(0.5 * given.mib * 2**20 * 2 / rate)
            processes[0].kill()
            waited = pipes[1:]
        for pipe in waited:
            assert pipe.recv() == (version + 1) * (given.mib << 18)
        if version:  # the first makes buffers and connections
            seconds.append(time.monotonic() - began)
        if kill and version == 1:
            break
    for pipe in pipes[kill:]:
        pipe.send(None)
    for process in processes:
        process.join()
    sender.close()
    remove_buffers(key)  # of a replica that was killed, too
    return seconds


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--mib", type=int, default=100)
    asked.add_argument("--uplink", type=float, default=100.0, help="MB a second")
    asked.add_argument("--replicas", type=int, nargs="*", default=[1, 2, 4, 8])
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    print("| replicas | tcp | tree | tree, killed |\n|---|---|---|---|")
    for count in given.replicas:
        tcp, tree = (statistics.median(measure(way, count, given)) for way in ("tcp", "tree"))
        killed = f"{measure('tree', count, given, kill=True)[0]:.2f} s" if count > HOSTS else ""
        print(f"| {count} | {tcp:.2f} s | {tree:.2f} s | {killed} |", flush=True)


if __name__ == "__main__":
    main()
