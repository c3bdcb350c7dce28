"""Cost facts of a torchtitan model: recomputation, copies of FSDP, offload, exchange of experts."""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl
from forgedsl.services.base import TrainingCost
from forgedsl.services.titan.memory import (
    added_gradients,
    shape_of,
    sums_become_gradients,
    whole_params,
)
from forgedsl.services.titan.optimizers import momentum
from forgedsl.sizes.devices import HOST_BANDWIDTH, PCIE, gpu_rates
from forgedsl.sizes.experts import expert_bytes, expert_seconds
from forgedsl.sizes.memory import Request, itemsize
from forgedsl.sizes.meshes import MeshPlan, value
from forgedsl.sizes.optimizers import moment_bytes
from forgedsl.sizes.params import PRECISIONS, num_params

RECOMPUTE = {"none": 3.0, "selective": 3.3, "full": 4.0}
"""cost of a forward and backward pass with activation checkpointing, in forward passes"""
ATTENDED = {"none": 3.0, "selective": 3.0, "full": 3.85}
"""the same for attention: selective recomputation keeps its results"""

GATHERED, REDUCED, ADDED = 40, 30, 10
"""bytes that a GPU reads and writes for each parameter: to cast and gather the weights of a
microbatch twice, to cast and reduce its gradients, and only to add its gradients (measured on one
H200 by torch.profiler)"""
HOST_ADDS = 15e9
"""bytes/s that a host reads and writes while it adds the gradients of a microbatch to those before
(measured beside one H200: 0.47 s for each microbatch of 0.6 B parameters)"""


def training(request: Request, mesh: MeshPlan, dims: Dims, *, trained: bool) -> TrainingCost:
    decl = request.program.services[mesh.service]
    fetched, updated = offload_seconds(request, decl, mesh, dims, trained=trained)
    mode = str(value(decl, "memory.activation_checkpoint", "none"))
    passes, attended = (RECOMPUTE[mode], ATTENDED[mode]) if trained else (1.0, 1.0)
    rows, seq_len = request.rows[mesh.service]
    tokens, size = rows * seq_len // mesh.degrees["cp"], itemsize(request.program, decl)
    seconds = expert_seconds(mesh, dims, tokens, size, passes)
    sent = expert_bytes(mesh, dims, tokens, size, passes)
    copied, once = copy_seconds(request, mesh) if trained and mesh.device == "gpu" else (0.0, 0.0)
    return TrainingCost(
        passes=passes, attended=attended, fetched=copied + fetched + seconds,
        updated=once + updated, sent=sent, sent_s=seconds,
    )  # fmt: skip


def copy_seconds(request: Request, mesh: MeshPlan) -> tuple[float, float]:
    """Return the seconds in which FSDP casts and copies weights and gradients: those of a
    microbatch, and those of an update."""
    shape = shape_of(request, mesh)
    weights = whole_params(shape) / mesh.degrees["tp"]
    learnt = weights if shape.adapters is None else shape.adapters
    bandwidth = gpu_rates(request.host.gpu, graphs=True).bandwidth
    if mesh.degrees["pp"] > 1:  # a stage gathers and reduces once an update
        return ADDED * learnt / bandwidth, (GATHERED * weights / 2 + REDUCED * learnt) / bandwidth
    if not shape.keeps_weights:
        return (GATHERED * weights + REDUCED * learnt) / bandwidth, 0.0
    alone = min(learnt, added_gradients(shape))
    each = ADDED * alone + REDUCED * (learnt - alone)
    once = 0 if sums_become_gradients(shape) else REDUCED * alone
    return each / bandwidth, (GATHERED * weights / 2 + once) / bandwidth


def offload_seconds(
    request: Request, decl: Decl, mesh: MeshPlan, dims: Dims, *, trained: bool
) -> tuple[float, float]:
    """Return the seconds that offload adds to a microbatch and to an update. Microbatch: weights
    move to the GPU for each pass, gradients to the host, where a CPU adds them. Update: the CPU
    reads and writes weights and moments. Weights that are kept move once an update, and so do
    gradients that wait on the GPU for the last microbatch.
    """
    if not value(decl, "memory.offload"):
        return 0.0, 0.0
    held = num_params(dims) / (mesh.world // mesh.degrees["dp_replicate"])
    if not trained:
        return itemsize(request.program, decl) * held / PCIE, 0.0
    precision, kind = (str(value(decl, f"optimizer.{name}")) for name in ("precision", "kind"))
    weight, _, gradient = PRECISIONS[precision]
    moments = moment_bytes(kind, precision, momentum=momentum(decl), params=1, matrices=0)
    shape = shape_of(request, mesh)
    learnt = held if shape.adapters is None else shape.adapters / shape.shard
    waiting = min(learnt, added_gradients(shape))
    each = gradient * (learnt - waiting)
    update = (2 * (weight + moments) + gradient) * learnt * mesh.procs / HOST_BANDWIDTH
    once, moved = update + gradient * waiting / PCIE, weight * held / PCIE
    reduced = each / PCIE + 3 * each * mesh.procs / HOST_ADDS
    return (reduced, once + moved) if shape.keeps_weights else (2 * moved + reduced, once)
