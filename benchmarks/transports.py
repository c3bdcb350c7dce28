"""Weight transports, from publishing to use: a sender and a receiver process, each on its own GPU.

    sender: publish(random weights) --manifest--> receiver: copies them over its own, compares

    python benchmarks/transports.py --out transports.json            two GPUs: shm tcp peer nccl
    python benchmarks/transports.py --size 0.05 --ways shm tcp gloo  CPU, a twentieth of the weights

The weights have the shapes of Qwen3-0.6B in bf16, `--size` a part of its layers and vocabulary.
Each way is timed in turns with all others, `--rounds` times after two rounds that make the buffers
and connections. `nccl-net` is `nccl` without NVLink and shared memory, as between hosts without
RDMA. Then, of `nccl`: an engine that dies in the middle, and what takes the next weights after it
(`death`); weights on their way while the sender multiplies matrices (`busy`) and reduces over a
group of its own with a third process on the receiver's GPU (`collectives`).

What comes out: a table, and with --out all seconds as JSON. Exit code 1 if weights differ.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WAYS = {"cuda": ("shm", "tcp", "peer", "nccl", "nccl-net"), "cpu": ("shm", "tcp", "gloo")}
NET = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
LATE = 180.0
"""seconds for an answer"""
HIDDEN, INNER, LAYERS, VOCABULARY, HEADS = 1024, 3072, 28, 151_936, (2048, 1024, 1024)


def shapes(size: float) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"embed": (round(VOCABULARY * size), HIDDEN)}
    for layer in range(max(1, round(LAYERS * size))):
        for name, rows in zip("qkv", HEADS, strict=True):
            found[f"{layer}.{name}"] = (rows, HIDDEN)
        found |= {f"{layer}.o": (HIDDEN, HEADS[0]), f"{layer}.norm": (HIDDEN,)}
        found |= {f"{layer}.gate": (INNER, HIDDEN), f"{layer}.up": (INNER, HIDDEN)}
        found[f"{layer}.down"] = (HIDDEN, INNER)
    return found


class End:
    """What runs in a process: the sender, a receiver, or the other rank of the sender's group."""

    def __init__(self, way: str, device: str, size: float, bucket: int) -> None:
        import torch

        from forgedsl_runtime.transports import nccl, registry

        self.torch, self.device = torch, torch.device(device)
        if way == "gloo":
            sys.path.insert(0, str(ROOT / "compiler_tests/runtime"))
            import gloo_wire

            registry.TRANSPORTS += (gloo_wire.transport(),)
        nccl.BUCKET, nccl.tcp.SECONDS = bucket, 60.0
        self.transport = registry.transport("nccl" if way == "nccl-net" else way)
        self.state = {name: self.empty(shape) for name, shape in shapes(size).items()}
        self.sender: Any = None

    def empty(self, shape: tuple[int, ...]) -> Any:
        return self.torch.zeros(shape, dtype=self.torch.bfloat16, device=self.device)

    def draw(self, seed: int) -> Callable[[tuple[int, ...]], Any]:
        generator = self.torch.Generator(self.device).manual_seed(seed)
        return lambda shape: self.empty(shape).normal_(generator=generator)

    def settle(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def publish(self, version: int) -> tuple[float, Any]:
        from forgedsl_runtime.transports.base import Sender

        if self.sender is None:
            key = f"benchmark-{os.getpid()}"
            self.sender = Sender(self.transport, key, self.torch.bfloat16)
        draw = self.draw(version)
        for value in self.state.values():
            value.copy_(draw(tuple(value.shape)))
        self.settle()
        begin = time.perf_counter()
        manifest = self.sender.publish(self.state, version)
        return time.perf_counter() - begin, manifest

    def take(self, manifest: Any) -> tuple[float, bool]:
        begin = time.perf_counter()
        for name, value in self.transport.open(manifest):
            self.state[name].copy_(value)
        self.settle()
        seconds = time.perf_counter() - begin
        draw, equal = self.draw(manifest.version), True
        for value in self.state.values():
            equal &= self.torch.equal(value, draw(tuple(value.shape)))
        return seconds, equal

    def again(self, manifest: Any, seconds: float) -> int:
        """Take the same weights over and over; how often."""
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, value in self.transport.open(manifest):
                self.state[name].copy_(value)
            self.settle()
            count += 1
        return count

    def die(self, manifest: Any) -> None:
        """Take one tensor, and end as by `kill -9`."""
        next(iter(self.transport.open(manifest)))
        os._exit(9)

    def busy(self, seconds: float) -> float:
        """Products of matrices meanwhile: TFLOP/s."""
        n = 8192 if self.device.type == "cuda" else 512
        a = self.torch.ones(n, n, dtype=self.torch.bfloat16, device=self.device)
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(10):
                a @ a
            self.settle()
            count += 10
        return count * 2 * n**3 / (time.perf_counter() - begin) / 1e12

    def group(self, rank: int, port: int) -> None:
        """Join torch's default group of two."""
        import torch.distributed as dist

        backend = "nccl" if self.device.type == "cuda" else "gloo"
        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=2)

    def reduce(self, rounds: int) -> float:
        """All-reduces of 64 MiB, with a product between: seconds of one."""
        import torch.distributed as dist

        flat = self.torch.ones(1 << 25, dtype=self.torch.bfloat16, device=self.device)
        a = flat[: 1 << 22].view(2048, 2048)
        begin = time.perf_counter()
        for _ in range(rounds):
            dist.all_reduce(flat)
            a @ a
        self.settle()
        return (time.perf_counter() - begin) / rounds

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()


def serve(pipe: Connection, environment: dict[str, str], arguments: tuple[Any, ...]) -> None:
    """Answer what is asked, in a process of its own."""
    os.environ.update(environment)
    sys.path.insert(0, str(ROOT))
    try:
        end = End(*arguments)
        pipe.send(None)
        while True:
            name, *words = pipe.recv()
            pipe.send(getattr(end, name)(*words))
            if name == "close":
                os._exit(0)  # as an actor ends
    except EOFError:
        os._exit(0)
    except Exception as error:
        import traceback

        traceback.print_exc()
        pipe.send(error if isinstance(error, RuntimeError) else RuntimeError(repr(error)))


class Child:
    """A process and what it is asked."""

    def __init__(self, way: str, gpu: int, options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        environment = {"FORGEDSL_ACTOR": f"{way} on GPU {gpu}"}
        if options.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        if way == "nccl-net":
            environment |= NET
        arguments = (way, options.device, options.size, options.bucket << 20)
        self.process = context.Process(
            target=serve, args=(there, environment, arguments), daemon=True
        )
        self.process.start()
        there.close()

    def start(self, *words: Any) -> None:
        self.pipe.send(words)

    def answer(self) -> Any:
        if not self.pipe.poll(LATE):
            raise TimeoutError(f"no answer within {LATE:.0f} s")
        found = self.pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    def ask(self, *words: Any) -> Any:
        self.start(*words)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


class Way:
    """One transport: its two processes and what was measured."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.sender, self.receiver = (Child(name, gpu, options) for gpu in (0, 1))
        self.version = 0
        self.found: dict[str, Any] = {"publish": [], "take": [], "total": [], "equal": True}

    def ready(self) -> None:
        self.sender.answer()
        self.receiver.answer()

    def round(self) -> None:
        self.version += 1
        self.sender.start("publish", self.version)
        publish, self.manifest = self.sender.answer()
        sent = time.perf_counter()
        take, equal = self.receiver.ask("take", self.manifest)
        self.found["round_trip"] = time.perf_counter() - sent - take
        self.found["bytes"] = self.manifest.num_bytes
        self.found["equal"] &= equal
        for key, seconds in {"publish": publish, "take": take, "total": publish + take}.items():
            self.found[key].append(seconds)

    def death(self) -> None:
        """Seconds from the death of an engine to the next weights in another and in a new one."""
        doomed = Child(self.name, 1, self.options)
        doomed.answer()
        doomed.start("die", self.manifest)
        doomed.process.join(LATE)
        begin = time.perf_counter()
        self.round()
        other = time.perf_counter() - begin
        fresh = Child(self.name, 1, self.options)
        fresh.answer()
        _, equal = fresh.ask("take", self.manifest)
        self.found["equal"] &= equal
        fresh.end()
        self.found["death"] = {"exit": doomed.process.exitcode, "next_weights": other}

    def busy(self) -> None:
        """Products of the sender, alone and while weights are on their way."""
        alone = self.sender.ask("busy", 2.0)
        self.sender.start("busy", 2.0)
        count = self.receiver.ask("again", self.manifest, 1.8)
        both = self.sender.answer()
        self.found["busy"] = {"alone_tflops": alone, "sending_tflops": both, "times_taken": count}

    def collectives(self) -> None:
        """All-reduces of the sender with a third process, alone and while weights are sent."""
        import socket

        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        third = Child(self.name, 1, self.options)
        third.answer()
        self._both(third, "group", [(0, port), (1, port)])
        alone = self._both(third, "reduce", [(50,)] * 2)
        self.sender.start("reduce", 200)
        third.start("reduce", 200)
        count = self.receiver.ask("again", self.manifest, 1.0)
        meanwhile, _ = self.sender.answer(), third.answer()
        third.end()
        self.found["collectives"] = {
            "alone_s": alone, "sending_s": meanwhile, "times_taken": count
        }  # fmt: skip

    def _both(self, third: Child, name: str, words: list[tuple[Any, ...]]) -> Any:
        self.sender.start(name, *words[0])
        third.start(name, *words[1])
        third.answer()
        return self.sender.answer()

    def close(self) -> None:
        for child in (self.receiver, self.sender):
            if child.process.is_alive():
                child.start("close")
                child.process.join(10)
            child.end()


def measured(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    ways: list[Way] = []
    try:
        for name in options.ways:
            ways.append(Way(name, options))
        for number in range(options.rounds + 2):
            for way in [*ways]:
                step(way, ways, way.ready if number == 0 else way.round, found)
                if number == 0:
                    step(way, ways, way.round, found)
        for way in [way for way in ways if way.name in ("nccl", "gloo")]:
            for what in options.also:
                step(way, ways, getattr(way, what), found)
    finally:
        for way in ways:
            way.close()
    return found | {way.name: way.found for way in ways}


def step(way: Way, ways: list[Way], act: Callable[[], None], found: dict[str, Any]) -> None:
    """Do it; a way that fails is left out, and says why."""
    if way not in ways:
        return
    try:
        act()
    except (RuntimeError, EOFError, OSError) as error:
        found[way.name] = way.found | {"error": f"{act.__name__}: {type(error).__name__}: {error}"}
        print(f"{way.name} failed at {act.__name__}: {error}", file=sys.stderr)
        ways.remove(way)
        way.close()


def table(found: dict[str, dict[str, Any]], drop: int) -> str:
    lines = [
        f"{'way':10}{'publish':>9}{'take':>9}{'total':>9}{'best':>9}{'GiB/s':>8}{'first':>9}  equal"
    ]
    for name, each in found.items():
        kept = {key: each[key][drop:] for key in ("publish", "take", "total")}
        if not kept["total"]:
            lines.append(f"{name:10} {each.get('error', 'too few rounds')}")
            continue
        publish, take, total = (statistics.median(kept[key]) for key in kept)
        lines.append(
            f"{name:10}{publish:9.3f}{take:9.3f}{total:9.3f}{min(kept['total']):9.3f}"
            f"{each['bytes'] / 2**30 / total:8.2f}{each['total'][0]:9.3f}  {each['equal']}"
            + (f"  {each['error']}" if "error" in each else "")
        )
        lines += [f"    {what}: {each[what]}" for what in EXTRA if what in each]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    set_ = {name: text for name, text in os.environ.items() if name.startswith("NCCL_")}
    return {"torch": torch.__version__, "gpus": gpus, "cpus": os.cpu_count(), "environment": set_}


EXTRA = ("death", "busy", "collectives")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", nargs="+", choices=sorted({*WAYS["cuda"], *WAYS["cpu"]}))
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there are two GPUs")
    parser.add_argument("--size", type=float, default=1.0, help="part of 0.6 B parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket", type=int, default=256, help="MiB of a bucket of nccl")
    parser.add_argument("--also", nargs="*", choices=EXTRA, default=EXTRA, help="of nccl, at last")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    if options.device is None:
        import torch

        options.device = "cuda" if torch.cuda.device_count() > 1 else "cpu"
    options.ways = options.ways or WAYS[options.device]
    found = measured(options)
    print(table(found, drop=2))
    if options.out:
        words = {key: value for key, value in vars(options).items() if key != "out"}
        made = {"options": words, "machine": machine(), "ways": found}
        options.out.write_text(json.dumps(made, indent=1) + "\n")
    return int(any("error" in each or not each["equal"] for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
