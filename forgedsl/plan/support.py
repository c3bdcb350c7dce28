"""P216: settings and models that this version does not support, from the tables of services.

schema.support  settings           cpu_heads         sizes of attention heads on a CPU
WITHOUT_CUDA    GPUs of `cluster`  cpu_expert_width  widths of experts on a CPU
"""

from __future__ import annotations

from forgedsl.diagnostics import Diagnostic, error
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, is_tenant
from forgedsl.operations.registry import operations
from forgedsl.plan.host import WITH_CUDA, has_no_cuda
from forgedsl.schema import SERVICES
from forgedsl.services.registry import kind_of
from forgedsl.sizes.hosts import gpu_bytes
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import MeshPlan, written_at


def check_support(request: Request, graph: Graph) -> list[Diagnostic]:
    """Report P216 for settings and models of the services that the flow uses."""
    found = []
    mesh_by_service = {mesh.service: mesh for mesh in request.meshes}
    for name in graph.services:
        if is_tenant(request.program, name):
            continue  # its engine is that of another service
        decl, mesh = request.program.services[name], mesh_by_service.get(name)
        roles = graph.roles if name == graph.trainer else frozenset[str]()
        found += _settings(decl, roles, mesh)
        if mesh is not None:
            found += _heads(request, decl, mesh)
            found += _experts(request, decl, mesh)
    return found + _gpu(request)


def _gpu(request: Request) -> list[Diagnostic]:
    """Report a GPU of `cluster` that is unsupported or unknown."""
    cluster = request.program.singletons.get("cluster")
    if cluster is None or all(mesh.device != "gpu" for mesh in request.meshes):
        return []
    gpu, memory = cluster.settings["gpu"], cluster.settings["gpu_memory"]
    if gpu.origin.layer == "default" or not isinstance(gpu.value, str):
        return []
    at, there = written_at(cluster, "gpu"), ", ".join(f"`{name}`" for name in WITH_CUDA)
    if has_no_cuda(gpu.value):
        message = f"`{gpu.value}` is not supported, because it has no CUDA"
        return [error("P216", "not-carried-out", message, at, help=f"supported are {there}")]
    if not gpu_bytes(gpu.value) and memory.origin.layer == "default":
        message = f"unknown GPU `{gpu.value}`, so its memory size is unknown"
        help_text = f"also set `gpu_memory`, such as `gpu_memory = 48GiB`; known GPUs are {there}"
        return [error("F113", "bad-value", message, at, help=help_text)]
    return []


def _settings(decl: Decl, roles: frozenset[str], mesh: MeshPlan | None) -> list[Diagnostic]:
    found = []
    device = "" if mesh is None else mesh.device
    for limit in SERVICES[str(decl.ctor)].support:
        value = decl.settings[limit.setting].value
        other = decl.settings[limit.beside].value if limit.beside else None
        if limit.exceeded(value, roles, head=decl.head, beside=other, device=device):
            without = next((o.name for o in operations() if limit.role in o.roles), "")
            where = f" in a flow without `{without}`" if without and roles else ""
            where += " together with a value head" if limit.head else ""
            where += f" together with `{limit.beside} = {other}`" if limit.beside else ""
            where += f" on a {limit.device.upper()}" if limit.device else ""
            word = str(value).lower() if isinstance(value, bool) else str(value)
            message = f"`{limit.setting} = {word}` of `{decl.name}` is not supported"
            at = written_at(decl, limit.setting)
            found.append(error("P216", "not-carried-out", message + where, at, help=limit.instead))
    return found


def _heads(request: Request, decl: Decl, mesh: MeshPlan) -> list[Diagnostic]:
    """Report head sizes for which attention has no CPU kernel."""
    dims, known = request.dims.get(decl.name), kind_of(mesh.kind).cpu_heads
    if mesh.device != "cpu" or dims is None or not known or dims.head_dim in known:
        return []
    return [
        error(
            "P216",
            "not-carried-out",
            f"the model of `{decl.name}` has `head_dim = {dims.head_dim}`, which its engine does "
            "not support on a CPU",
            decl.name_span,
            help=f"on a CPU, `head_dim` must be {', '.join(map(str, known[:-1]))} or {known[-1]}; "
            "a GPU supports others, too",
        )
    ]


def _experts(request: Request, decl: Decl, mesh: MeshPlan) -> list[Diagnostic]:
    """Report experts for which an engine on a CPU has no kernel, and those whose width it pads: it
    cannot load new weights into them."""
    dims, unit = request.dims.get(decl.name), kind_of(mesh.kind).cpu_expert_width
    if mesh.device != "cpu" or dims is None or not dims.experts or not unit:
        return []
    if dims.hidden % unit:
        return [
            error(
                "P216",
                "not-carried-out",
                f"the model of `{decl.name}` has experts and `hidden = {dims.hidden}`, for which "
                "its engine has no kernel on a CPU",
                decl.name_span,
                help=f"on a CPU, `hidden` must be a multiple of {unit}; a GPU takes others, too",
            )
        ]
    tp = mesh.degrees["tp"]
    if decl.name not in request.synced or dims.ffn % (unit * tp) == 0:
        return []
    each = f" / tp {tp}" if tp > 1 else ""
    return [
        error(
            "P216",
            "not-carried-out",
            f"experts of the model of `{decl.name}` have a width of {dims.ffn}{each}, into which "
            "its engine cannot load published weights on a CPU",
            decl.name_span,
            help=f"on a CPU, the width on each rank must be a multiple of {unit}; a GPU takes "
            "others, too",
        )
    ]
