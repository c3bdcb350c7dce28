"""F113: settings that nothing reads, because of another setting or of the flow.

    dataset sums { system = "Be brief.", prompt = row.question }    the prompt leaves `system` out
    dataset sums { level = row.level }                              no weighted draw counts by it
    logging { wandb { entity = "me" } }                             no project, so nothing is sent
    service generator : vllm(policy) { device = cpu, engine.gpu_memory = 0.3 }

A setting is silent if a stronger layer decides that nothing reads it: a file may be written for
GPUs, and its profile for a host without one sets `device = cpu`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, error
from forgedsl.hir.table import RANK
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Deferred, Program, Value, is_tenant
from forgedsl.sizes.meshes import is_default, setting_label, written_at
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names

ON_GPU = ("engine.gpu_memory", "engine.cuda_graphs")
"""settings that only a service on GPUs reads"""
SWITCHES = {
    "wandb.entity": "wandb.project",
    "wandb.mode": "wandb.project",
    "mlflow.uri": "mlflow.experiment",
    "trackio.space": "trackio.project",
}
"""settings of `logging`, and the one that turns their tracker on"""


def check_without_effect(program: Program, graph: Graph) -> list[Diagnostic]:
    """Report F113 for written settings that nothing reads. `program` still has its `auto`s."""
    found = [
        d
        for dataset in program.datasets.values()
        for d in (*_system(dataset), *_level(program, dataset))
    ]
    found += _trackers(program.singletons["logging"])
    for name in graph.services:
        if not is_tenant(program, name):  # plan/tenants.py reports settings of tenants
            found += [*_of_gpus(program.services[name]), *_route(program.services[name])]
    return [*found, *_colocated(program, graph)]


def _beside(setting: Value, *deciding: Value) -> bool:
    """Return True if a setting is written, and no stronger layer decides that it has no effect."""
    rank = RANK[setting.origin.layer]
    return not is_default(setting) and all(RANK[each.origin.layer] <= rank for each in deciding)


def _system(dataset: Decl) -> Iterator[Diagnostic]:
    """Yield a system message that no expression of the dataset reads."""
    system, prompt = dataset.settings["system"], dataset.settings["prompt"]
    columns = [each.value for each in dataset.settings.values() if isinstance(each.value, Deferred)]
    read = any(parts[0] == "system" for column in columns for parts in names(column.expr))
    if system.value is None or read or not _beside(system, prompt):
        return
    expr = prompt.value.expr if isinstance(prompt.value, Deferred) else None
    user = expr.text if isinstance(expr, ast.Path) else "row.question"
    yield error(
        "F113",
        "bad-value",
        f"`system` of `{dataset.name}` has no effect: its prompt does not read it",
        written_at(dataset, "system"),
        related=setting_label(dataset, "prompt"),
        help=f"`prompt = chat(system, {user})`, or remove `system`",
    )


def _level(program: Program, dataset: Decl) -> Iterator[Diagnostic]:
    """Yield the key of a weighted draw where no draw is weighted."""
    level = dataset.settings["level"]
    weighted = any(s.receiver == dataset.name and "weight" in s.settings for s in program.flow)
    if level.value is not None and not weighted and _beside(level):
        yield error(
            "F113",
            "bad-value",
            f"`level` of `{dataset.name}` has no effect: no draw from it has a weight",
            written_at(dataset, "level"),
            help=f"`{dataset.name}.draw(..., weight = FUNCTION)`, or remove `level`",
        )


def _trackers(logging: Decl) -> Iterator[Diagnostic]:
    """Yield settings of a tracker that is off."""
    for key, switch in SWITCHES.items():
        setting, on = logging.settings[key], logging.settings[switch]
        if setting.value is not None and on.value is None and _beside(setting, on):
            yield error(
                "F113",
                "bad-value",
                f"`{key}` has no effect without `{switch}`",
                written_at(logging, key),
                help=f'`{switch} = "NAME"`, or remove `{key}`',
            )


def _on_cpu(decl: Decl) -> bool:
    """Return True if it is written that a service runs on CPUs."""
    device = decl.settings.get("device")
    return device is not None and not is_default(device) and device.value == "cpu"


def _of_gpus(decl: Decl) -> Iterator[Diagnostic]:
    """Yield settings for GPUs of a service that runs on CPUs."""
    for key in ON_GPU if _on_cpu(decl) else ():
        if key in decl.settings and _beside(decl.settings[key], decl.settings["device"]):
            yield error(
                "F113",
                "bad-value",
                f"`{key}` of `{decl.name}` has no effect on a CPU",
                written_at(decl, key),
                related=setting_label(decl, "device"),
                help=f"remove `{key}`, or set `device = gpu`",
            )


def _route(decl: Decl) -> Iterator[Diagnostic]:
    """Yield a way to choose among replicas where there is only one."""
    route, replicas = decl.settings.get("route"), decl.settings.get("replicas")
    if route is None or replicas is None or replicas.value != 1 or not _beside(route, replicas):
        return
    yield error(
        "F113",
        "bad-value",
        f"`route` of `{decl.name}` has no effect with one replica",
        written_at(decl, "route"),
        related=setting_label(decl, "replicas"),
        help="remove `route`, or set `replicas`",
    )


def _colocated(program: Program, graph: Graph) -> Iterator[Diagnostic]:
    """Yield services in `colocate` that run on CPUs, so have no GPU to share."""
    shared = program.singletons["colocate"]
    value = shared.settings["value"]
    listed = value.value if isinstance(value.value, list) else []
    for decl in (program.services[ref.name] for ref in listed if ref.name in graph.services):
        if _on_cpu(decl) and _beside(value, decl.settings["device"]):
            yield error(
                "F113",
                "bad-value",
                f"`{decl.name}` in `colocate` has no effect: it runs on a CPU, and services share "
                "GPUs",
                written_at(shared, "value"),
                related=setting_label(decl, "device"),
                help="remove it from the list",
            )
