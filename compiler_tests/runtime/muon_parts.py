"""Prints whether Muon over weights in parts is torch's Muon over whole ones, on four gloo ranks.

Run by test_optimizers. All ranks have the same gradient, so that steps have to be equal bit by bit.
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from forgedsl_runtime.services.titan.upstream.optimizers import Muon

RANKS = 4
SETTINGS = {"lr": 1e-2, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    shapes = ((24, 13), (13, 40), (40, 24))  # 13 rows do not come out even
    return torch.nn.Sequential(*(torch.nn.Linear(*shape, bias=False) for shape in shapes))


def spread(layout: str) -> torch.nn.Sequential:
    found = model()
    if layout == "fsdp":
        fully_shard(found, mesh=init_device_mesh("cpu", (RANKS,)))
    elif layout == "replicas":
        fully_shard(found, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(found, mesh["tp"], {"1": ColwiseParallel(), "2": RowwiseParallel()})
        for layer in found[1:]:
            fully_shard(layer, mesh=mesh["dp"])
    return found


def steps(layers: torch.nn.Sequential) -> list[torch.Tensor]:
    kept = [layer.weight for layer in layers]
    optimizer = (Muon if dist.is_initialized() else torch.optim.Muon)(kept, **SETTINGS)
    draw = torch.Generator().manual_seed(2)
    for _ in range(3):
        for weight in kept:
            grad = torch.randn(weight.shape, generator=draw)
            if hasattr(weight, "placements"):
                grad = distribute_tensor(grad, weight.device_mesh, weight.placements)
            weight.grad = grad
        optimizer.step()
    return [w.full_tensor() if hasattr(w, "full_tensor") else w.detach() for w in kept]


def rank(index: int, port: int, layouts: list[str], expected: list[torch.Tensor]) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=index, world_size=RANKS)
    found = {}
    for layout in layouts:
        one = steps(spread(layout))
        found[layout] = all(a.equal(b) for a, b in zip(one, expected, strict=True))
    if index == 0:
        print("RESULT" + json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.spawn(rank, (store.port, sys.argv[1:], steps(model())), nprocs=RANKS)


if __name__ == "__main__":
    main()
