"""Prints how far results and gradients of dispatched experts are from float64, on gloo ranks.

Run by test_expert_dispatch. Arguments: number of ranks, whether to compile, and for each case
"top_k,last": experts of a token, and the last expert that is chosen. An expert multiplies by its
weight and takes the tanh; rows that belong to no expert become NaN, so that nothing may read them.
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

from forgedsl_runtime.services.titan.upstream.dispatch import dispatcher
from forgedsl_runtime.services.titan.upstream.model import SPMD_BACKEND, select_device

TOKENS, WIDTH, EXPERTS = 40, 16, 8
"""tokens of a rank"""


def drawn(ranks: int, top_k: int, last: int) -> tuple[torch.Tensor, ...]:
    """Tokens of all ranks, the weights of their experts, which they are, and their factors."""
    torch.manual_seed(3)
    count = ranks * TOKENS
    x = torch.randn(count, WIDTH, dtype=torch.float64)
    weights = torch.rand(count, top_k, dtype=torch.float64)
    ids = torch.stack([torch.randperm(max(last + 1, top_k))[:top_k] for _ in range(count)])
    return x, weights, ids.clamp(max=last), torch.randn(EXPERTS, WIDTH, dtype=torch.float64)


def expected(x: Any, weights: Any, ids: Any, experts: Any) -> list[torch.Tensor]:
    """The definition, in float64."""
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    out = (torch.tanh(x[:, None] * experts[ids]) * weights[..., None]).sum(1)
    (out**2).sum().backward()
    return [out.detach(), x.grad, weights.grad]


def through(used: Any, x: Any, weights: Any, ids: Any, experts: Any) -> torch.Tensor:
    counts = torch.zeros(EXPERTS, dtype=torch.int64).scatter_add(
        0, ids.reshape(-1), torch.ones_like(ids.reshape(-1))
    )
    rows, per_expert, kept = used.dispatch(x, weights, ids, counts)
    ends = per_expert.cumsum(0)
    number = torch.arange(rows.shape[0])
    which = torch.searchsorted(ends, number, right=True).clamp(max=len(experts) - 1)
    rows = torch.tanh(rows * experts[which])
    rows = torch.where((number < ends[-1])[:, None], rows, float("nan"))
    return used.combine(rows, kept, x)


def rank(
    index: int, port: int, ranks: int, compiled: bool, cases: list[tuple[int, int]]
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    torch._dynamo.config.capture_scalar_outputs = True  # as torchtitan does
    select_device("cpu")
    from torchtitan.distributed.utils import set_spmd_backend

    set_spmd_backend(SPMD_BACKEND)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=index, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",)) if ranks > 1 else None
    run = torch.compile(through, fullgraph=True, dynamic=True) if compiled else through
    found = [measured(index, ranks, mesh, run, *case) for case in cases]
    if index == 0:
        print("RESULT" + json.dumps(found), flush=True)
    dist.destroy_process_group()


def measured(
    index: int, ranks: int, mesh: Any, run: Any, top_k: int, last: int
) -> dict[str, Any]:  # fmt: skip
    """Whether tokens are gathered, and by rank how far the results are from float64."""
    used = dispatcher().Config(num_experts=EXPERTS, top_k=top_k).build()
    if mesh is not None:
        used.wire_meshes(ep_mesh=mesh)
    inputs = drawn(ranks, top_k, last)
    own = slice(index * TOKENS, (index + 1) * TOKENS)
    x, weights = (value[own].float().requires_grad_() for value in inputs[:2])
    count = EXPERTS // ranks
    experts = inputs[3][index * count : (index + 1) * count].float()
    out = run(used, x, weights, inputs[2][own].clone(), experts)
    (out**2).sum().backward()
    pairs = zip([out.detach(), x.grad, weights.grad], expected(*inputs), strict=True)
    off = max(float((a.double() - b[own]).abs().max() / b.abs().max()) for a, b in pairs)
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, off)
    return {"gathers": used.gathers, "off": every}


def main() -> None:
    ranks, compiled = map(int, sys.argv[1:3])
    cases = [(int(a), int(b)) for a, b in (word.split(",") for word in sys.argv[3:])]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.spawn(rank, (store.port, ranks, bool(compiled), cases), nprocs=ranks)


if __name__ == "__main__":
    main()
