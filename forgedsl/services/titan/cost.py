"""Cost facts of a torchtitan model: recomputation, offload, experts on other ranks."""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl
from forgedsl.services.base import TrainingCost
from forgedsl.services.titan.optimizers import momentum
from forgedsl.sizes.devices import HOST_BANDWIDTH, PCIE
from forgedsl.sizes.experts import expert_bytes, expert_seconds
from forgedsl.sizes.memory import Request, itemsize
from forgedsl.sizes.meshes import MeshPlan, value
from forgedsl.sizes.optimizers import moment_bytes
from forgedsl.sizes.params import PRECISIONS, num_params

RECOMPUTE = {"none": 3.0, "selective": 3.3, "full": 4.0}
"""cost of a forward and backward pass with activation checkpointing, in forward passes"""


def training(request: Request, mesh: MeshPlan, dims: Dims, *, trained: bool) -> TrainingCost:
    decl = request.program.services[mesh.service]
    fetched, updated = offload_seconds(request, decl, mesh, dims, trained=trained)
    mode = str(value(decl, "memory.activation_checkpoint", "none"))
    passes = RECOMPUTE[mode] if trained else 1.0
    rows, seq_len = request.rows[mesh.service]
    tokens, size = rows * seq_len // mesh.degrees["cp"], itemsize(request.program, decl)
    seconds = expert_seconds(mesh, dims, tokens, size, passes)
    sent = expert_bytes(mesh, dims, tokens, size, passes)
    return TrainingCost(
        passes=passes, fetched=fetched + seconds, updated=updated, sent=sent, sent_s=seconds
    )


def offload_seconds(
    request: Request, decl: Decl, mesh: MeshPlan, dims: Dims, *, trained: bool
) -> tuple[float, float]:
    """Return the seconds that offload adds to a microbatch and to an update. Microbatch: weights
    move to the GPU for each pass, gradients back. Update: the CPU reads and writes weights and
    moments.
    """
    if not value(decl, "memory.offload"):
        return 0.0, 0.0
    held = num_params(dims) / (mesh.world // mesh.degrees["dp_replicate"])
    if not trained:
        return itemsize(request.program, decl) * held / PCIE, 0.0
    precision, kind = (str(value(decl, f"optimizer.{name}")) for name in ("precision", "kind"))
    weight, _, gradient = PRECISIONS[precision]
    moments = moment_bytes(kind, precision, momentum=momentum(decl), params=1, matrices=0)
    update = (2 * (weight + moments) + gradient) * held * mesh.procs / HOST_BANDWIDTH
    return (2 * weight + gradient) * held / PCIE, update
