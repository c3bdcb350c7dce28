"""Rates of the processes of a plan: those of their GPUs, or of their share of a host's cores."""

from __future__ import annotations

from forgedsl.sizes.devices import Rates, attention_rate, cpu_rates, gpu_rates
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import MeshPlan, value


def rates_of(request: Request, mesh: MeshPlan) -> Rates:
    """The rates of one rank."""
    if mesh.device == "gpu":
        decl = request.program.services[mesh.service]
        graphs = bool(value(decl, "engine.cuda_graphs", True))
        dims = request.dims[mesh.service]
        if dims is None:
            return gpu_rates(request.host.gpu, graphs=graphs)
        return gpu_rates(
            request.host.gpu, graphs=graphs, hidden=dims.hidden, experts=bool(dims.experts)
        )
    if mesh.cpus is not None:
        return cpu_rates(mesh.cpus)
    mine, schedule = cores_of(request, mesh), request.program.schedule
    turns = schedule is None or schedule.label != "async"
    return cpu_rates(max(1.0, mine) if turns else mine)


def attention_speed(request: Request, mesh: MeshPlan, length: int) -> float:
    """Return the FLOP/s of a trainer's attention on one rank, in samples of `length` tokens."""
    if mesh.device == "gpu":
        return attention_rate(request.host.gpu, length)
    return rates_of(request, mesh).train


def cores_of(request: Request, mesh: MeshPlan) -> float:
    """Return the cores of a process without GPU: its share of those that processes with GPUs leave.
    It is less than one if there are more processes than cores."""
    host = mesh.places[0].host
    procs = {"cpu": 0, "gpu": 0}
    for other in request.meshes:
        procs[other.device] += other.procs * sum(p.host == host for p in other.places)
    return max(0.1, request.host.cpus - procs["gpu"]) / procs["cpu"]
