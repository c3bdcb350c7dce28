"""Parts of the time of a decode step that weights, keys and values, and products do not take.

    plan, sampling service, completions at once --> seconds

Used by the plan's cost of sampling and by the simulator.
"""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.sizes.adapters import added_seconds
from forgedsl.sizes.devices import LINK, REDUCE, Rates
from forgedsl.sizes.experts import routed_seconds
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import MeshPlan


def launch_seconds(
    request: Request, service: str, rates: Rates, *, width: int, itemsize: int
) -> float:
    """Return the seconds that a decode step of `width` completions takes for launches, all-reduces,
    routing to experts, and the products of an adapter."""
    mesh, dims = request.mesh(service), request.dims[service]
    assert dims is not None
    found = rates.decode + dims.layers * rates.layer + reduce_seconds(mesh, dims, width, itemsize)
    found += added_seconds(dims, request.added_rank(service), width, mesh.device)
    if mesh.gpus:
        found += routed_seconds(dims, itemsize, rates.bandwidth * mesh.world)
    return found


def reduce_seconds(mesh: MeshPlan, dims: Dims, tokens: int, size: int) -> float:
    """Return the seconds of tensor parallelism's all-reduces in a forward pass: two per layer."""
    tp = mesh.degrees.get("tp", 1)
    if tp == 1 or mesh.device == "cpu":
        return 0.0
    return 2 * dims.layers * (REDUCE + 2 * (tp - 1) / tp * tokens * dims.hidden * size / LINK)
