"""Prints whether `gather_tensors` makes whole tensors out of parts, on four gloo ranks.

Run by test_weight_sync. Tensors are those of a model as FSDP spreads it (evenly and not), as copies
of ranks hold it, as ranks share experts, and experts in two parts that are joined.
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from forgedsl_runtime.services.titan.upstream import experts
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensors

RANKS = 4
ROWS = ((8, 3), (12,), (5, 2), (4, 2, 3))
"""shapes of the tensors; five rows are not spread evenly"""


def wholes() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw) for shape in ROWS]


def spread(layout: str, whole: list[Tensor]) -> list[DTensor | Tensor]:
    if layout == "alone":
        return [*whole]
    if layout == "copies":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return [distribute_tensor(each, mesh, [Replicate(), Shard(0)]) for each in whole]
    if layout == "experts":  # FSDP over one rank, experts over all
        mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("fsdp", "experts"))
        return [distribute_tensor(each, mesh, [Shard(0), Shard(0)]) for each in whole]
    mesh = init_device_mesh("cpu", (RANKS,))
    by = Shard(1) if layout == "columns" else Shard(0)
    return [distribute_tensor(each, mesh, [by if each.dim() > 1 else Shard(0)]) for each in whole]


def is_whole(layout: str, dtype: torch.dtype) -> bool:
    whole = wholes()
    parts = spread(layout, whole)
    pair = experts.Stacked((parts[3], parts[3]), torch.float32)
    counts = torch.arange(7)  # e.g. a buffer of the model
    expected = [each.to(dtype) for each in whole]
    expected = [*expected, torch.cat([expected[3], expected[3]], 1), counts]
    found = gather_tensors([*parts, pair, counts], dtype)
    return all(
        a.dtype == b.dtype and a.equal(b) and not isinstance(a, DTensor)
        for a, b in zip(found, expected, strict=True)
    )


def rank(index: int, port: int, layouts: list[str]) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=index, world_size=RANKS)
    dtypes = (torch.float32, torch.bfloat16)
    mine = {layout: all(is_whole(layout, dtype) for dtype in dtypes) for layout in layouts}
    everyone: list[dict[str, bool]] = [{} for _ in range(RANKS)]
    dist.all_gather_object(everyone, mine)
    if index == 0:
        found = {layout: all(each[layout] for each in everyone) for layout in layouts}
        print("RESULT" + json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.spawn(rank, (store.port, sys.argv[1:]), nprocs=RANKS)


if __name__ == "__main__":
    main()
