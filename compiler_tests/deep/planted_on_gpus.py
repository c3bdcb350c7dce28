"""Publishes weights between processes, with a fault planted into each second publication, then
many right ones; prints what the proofs say.

    trainer ranks, a process each: Sender.publish, spoil --> Manifest --> this process: the engine

Arguments: an empty folder, and a way: `ipc` needs one GPU, `peer` and `nccl` two. `shm`, `tcp` and
`gloo` do the same on a CPU. Run by test_planted_on_gpus, or by hand where there is no pytest.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "runtime"), str(HERE / "plant_weights")]
RIGHT = 1000
"""publications without a fault"""


@dataclass(frozen=True, slots=True)
class Way:
    """How weights go: the GPU of each rank of the trainer and of the engine; no GPU on a CPU."""

    ranks: tuple[str, ...]
    engine: str
    spoiled: int = 0
    """rank into whose buffer faults are planted"""

    @property
    def device(self) -> str:
        return "gpu" if self.engine else "cpu"


WAYS = {
    "ipc": Way(("0",), "0"),
    "peer": Way(("0", "1"), "0", spoiled=1),
    "nccl": Way(("0",), "1"),
    "shm": Way(("",), ""),
    "tcp": Way(("",), ""),
    "gloo": Way(("", ""), "", spoiled=1),
}


def weights_transport(way: str) -> Any:
    """Return the transport; `gloo` is nccl with another net, and is added to the registry."""
    from forgedsl_runtime.transports import registry

    if way == "gloo" and all(each.name != way for each in registry.TRANSPORTS):
        import gloo_wire

        registry.TRANSPORTS += (gloo_wire.transport(),)
    return registry.transport(way)


def trainer(way: str, rank: int, folder: str, orders: Connection) -> None:
    """Publish and spoil as ordered: a rank of a trainer."""
    import torch
    import torch.distributed as dist
    from planted_publications import TINY, planting
    from safetensors.torch import load_file

    from forgedsl_runtime.transports import base

    how, plant = WAYS[way], planting()
    world = len(how.ranks)
    store = dist.FileStore(f"{folder}/ranks", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)

    def gather(mine: Any) -> list[Any]:
        found: list[Any] = [None] * world
        dist.all_gather_object(found, mine)
        return found

    dtype = torch.bfloat16 if how.device == "gpu" else torch.float32
    ranks = base.Ranks(rank=rank, world=world, gather_objects=gather)
    name = f"planted-{way}-{os.getppid()}"
    sender = base.Sender(weights_transport(way), name, dtype, ranks=ranks)
    state = load_file(TINY / "model.safetensors")
    if how.device == "gpu":
        state = {key: value.cuda() for key, value in state.items()}
    version = 0
    while (fault := orders.recv()) is not None:
        state = {key: value * 1.01 for key, value in state.items()}  # also in bf16 other values
        if version % 50 == 49:
            state = {key: value / 1.01**50 for key, value in state.items()}
        turn = sender._turn
        manifest = sender.publish(state, version)
        if fault:
            plant.spoil(fault, base, sender, turn)
        version += 1
        gather(None)  # no rank is still planting
        orders.send(manifest)
    sender.close()


class Trainers:
    """The ranks of a trainer, each in a process that sees its GPU alone."""

    def __init__(self, way: str, folder: str) -> None:
        context, how = get_context("spawn"), WAYS[way]
        os.environ["FORGE_PLANT_RANK"] = str(how.spoiled)
        self._orders, self._processes = [], []
        for rank, gpu in enumerate(how.ranks):
            mine, theirs = context.Pipe()
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            process = context.Process(target=trainer, args=(way, rank, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            self._orders.append(mine)
            self._processes.append(process)

    def publish(self, fault: str = "") -> Any:
        """Return the manifest of the next publication, into which a fault is planted."""
        for orders in self._orders:
            orders.send(fault)
        first, *_ = [orders.recv() for orders in self._orders]
        return first

    def close(self) -> None:
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join(60)


def main(folder: str, way: str) -> None:
    trainers = Trainers(way, folder)
    os.environ["CUDA_VISIBLE_DEVICES"] = WAYS[way].engine
    weights_transport(way)  # `gloo` is known to this process too
    from planted_publications import TINY, Receiver, planting, told
    from small_engine import small_engine

    receiver = Receiver(
        small_engine(TINY, Path(folder) / "rendezvous", device=WAYS[way].device, random=True)
    )
    found: dict[str, Any] = {"start": told(receiver.load(trainers.publish(), []))}
    found["first"] = told(receiver.load(trainers.publish()))
    for fault in planting().FAULTS:
        found[fault] = told(receiver.load(trainers.publish(fault)))
        found[f"after {fault}"] = told(receiver.load(trainers.publish()))
    since, alarms = time.monotonic(), 0
    for _ in range(RIGHT):
        alarms += bool(receiver.load(trainers.publish()).faults)
    found["alarms"] = {"of": RIGHT, "alarms": alarms, "seconds": time.monotonic() - since}
    trainers.close()
    print("RESULT" + json.dumps(found))
    for key, value in found.items():
        faults = value.get("faults", [])
        print(f"{key:20} {len(faults)} {faults[0]}" if faults else f"{key:20} {value}")


if __name__ == "__main__":
    main(*sys.argv[1:])
