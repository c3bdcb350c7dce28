"""P230: a service that the engine of another one cannot serve. F113: its settings without effect.

    service judge     : vllm(grader)  { served_by = generator }     a tenant of generator
    service reference : titan(policy) { served_by = trainer }       a tenant of trainer

The engine holds the base of the policy's model once, and adds the policy's adapter to it. A tenant
answers with the base, or with an adapter of its own. So its model differs from the policy's by
`adapter` and `chat_template` alone. A trainer with LoRA holds the base too, and computes log-probs
of a frozen model with its adapters left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import Constructor, Decl, Program, Ref, engine_of, is_tenant, model_of
from forgedsl.records import replace
from forgedsl.services.registry import kind_of
from forgedsl.shipped import locate
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import number, setting_label, written_at
from forgedsl.sizes.params import SLOT_RANKS, adapter_slot_rank
from forgedsl.source import Span

SAME = ("source", "arch", "dtype", "context", "tokenizer", "tool_calls")
"""settings of a model that tenant and engine must have in common"""
OWN = "remove `served_by`: `{}` then has {} of its own"
OWN_SETTINGS = ("sampling.", "temperature")
"""beginnings of the settings of a tenant that take effect"""


def check_tenants(program: Program, graph: Graph, base_dir: Path | None) -> list[Diagnostic]:
    """Report P230 and F113 for the services that the engine of another one is to serve."""
    found = []
    for name in graph.services:
        if not is_tenant(program, name):
            continue
        tenant = program.services[name]
        if kind_of(tenant.ctor).trains:
            found_in = _of_trainer(program, graph.trainer, tenant)
        else:
            found_in = _of_engine(program, graph, tenant)
        problems = [*found_in] or [*_of_model(program, tenant, base_dir)]
        cannot = f"`{name}` cannot be served by `{engine_of(program, name)}`"
        found += [
            error("P230", "served-by", f"{cannot}: {why}", at, related=related, help=remedy)
            for why, at, related, remedy in problems
        ]
        if name != graph.trainer:
            found += _without_effect(program, tenant)
    return found


Problem = tuple[str, Span, tuple[Label, ...], str]
"""why, where it is written, related places, what works instead"""


def _of_engine(program: Program, graph: Graph, tenant: Decl) -> Iterator[Problem]:
    """Yield why a service has no engine that can serve others."""
    name = engine_of(program, tenant.name)
    engine, at = program.services[name], written_at(tenant, "served_by")
    label, own = (Label(text="declared here", span=engine.name_span),), _own(tenant)
    if name == tenant.name:
        yield "that is the service itself", at, (), own
    elif is_tenant(program, name):
        other = engine_of(program, name)
        why = f"it has no engine, but is served by `{other}`"
        yield why, at, label, f"`served_by = {other}`"
    elif not kind_of(engine.ctor).adds_adapters:
        yield f"it is a {engine.ctor} service", at, label, "name a vllm service"
    elif all(sync.settings.get("weights") != "adapter" for sync in _syncs(graph, name)):
        why = "its engine keeps the base model only if a `sync` sends it an adapter alone"
        sync = f"`sync TRAINER -> {name} {{ weights = adapter }}`"
        yield why, at, label, f"write {sync} from a trainer with `lora`, or {own}"


def _of_trainer(program: Program, trained: str, tenant: Decl) -> Iterator[Problem]:
    """Yield why a service does not compute the log-probs of a frozen model; `trained` is the one
    that the flow trains."""
    name = engine_of(program, tenant.name)
    trainer, at = program.services[name], written_at(tenant, "served_by")
    label, own = (Label(text="declared here", span=trainer.name_span),), _own(tenant)
    if name == tenant.name:
        yield "that is the service itself", at, (), own
    elif tenant.name == trained:
        yield f"the flow trains `{tenant.name}`", at, (), own
    elif is_tenant(program, name):
        other = engine_of(program, name)
        why = f"it has no processes, but is served by `{other}`"
        yield why, at, label, f"`served_by = {other}`"
    elif not kind_of(trainer.ctor).trains:
        why = f"it is a {trainer.ctor} service"
        yield why, at, label, f"write `served_by = {trained}`, or {own}"
    elif name != trained:
        why = "the flow does not train it, so it has no adapters to leave out"
        yield why, at, label, f"write `served_by = {trained}`, or {own}"
    elif not number(trainer, "lora.rank", 0):
        why = "it trains the weights themselves, so its first step changes the base"
        yield why, at, label, f"write `lora {{ rank = 32 }}` in `{name}`, or {own}"
    elif tenant.head:
        why = f"`{tenant.name}` has a value head, and `{name}` computes only its log-probs"
        yield why, at, (), own


def _own(tenant: Decl) -> str:
    return OWN.format(tenant.name, "processes" if kind_of(tenant.ctor).trains else "an engine")


def _syncs(graph: Graph, engine: str) -> Iterable[Node]:
    return (sync for sync in graph.syncs if sync.settings["target"] == engine)


def _of_model(program: Program, tenant: Decl, base_dir: Path | None) -> Iterator[Problem]:
    """Yield how the model of a tenant is not the base of its engine, or that with an adapter."""
    engine = program.services[engine_of(program, tenant.name)]
    own, base = (program.models[model_of(decl)] for decl in (tenant, engine))
    if own.name == base.name:
        return
    for key in SAME:
        if _plain(own.settings[key].value) != _plain(base.settings[key].value):
            holder = f"`{engine.name}`" if kind_of(tenant.ctor).trains else "its engine"
            other = f"`{own.name}` has another `{key}` than `{base.name}`"
            why = f"{other}, which {holder} has loaded"
            remedy = f"write the same `{key}` in both, or {_own(tenant)}"
            yield why, written_at(own, key), setting_label(base, key), remedy
            return
    adapter, merged = (model.settings["adapter"].value for model in (own, base))
    if merged is not None and _plain(adapter) != _plain(merged):
        holder = f"`{engine.name}`" if kind_of(tenant.ctor).trains else "its engine"
        why = f"the adapter of `{base.name}` is merged into the weights of {holder}"
        remedy = f"write the same `adapter` in both, or {_own(tenant)}"
        yield why, written_at(own, "adapter"), setting_label(base, "adapter"), remedy
    elif isinstance(adapter, Constructor) and kind_of(tenant.ctor).trains and merged is None:
        why = f"the weights of `{engine.name}` lack the adapter of `{own.name}`"
        remedy = f"write the same `adapter` in both, or {_own(tenant)}"
        yield why, written_at(own, "adapter"), (), remedy
    elif isinstance(adapter, Constructor) and merged is None:
        yield from _of_adapter(own, adapter, tenant, base_dir)


def _of_adapter(
    model: Decl, adapter: Constructor, tenant: Decl, base_dir: Path | None
) -> Iterator[Problem]:
    """Yield why an engine cannot add the adapter in a folder beside the file."""
    from forgedsl.adapters import UnfitAdapter, outside, read_adapter

    folder = _folder(adapter, base_dir)
    if folder is None:
        return
    try:
        found = read_adapter(folder)
    except UnfitAdapter:
        return  # P217 reports it
    at = written_at(model, "adapter")
    if not adapter_slot_rank(found.rank):
        why = f"the adapter has rank {found.rank}, and {SLOT_RANKS[-1]} is vLLM's largest"
        yield why, at, (), _own(tenant)
    if layer := outside(found):
        why = f"the adapter changes `{layer}`, to which an engine cannot add one"
        yield why, at, (), _own(tenant)


def _without_effect(program: Program, tenant: Decl) -> list[Diagnostic]:
    """Report F113 for the settings of a tenant that the service that serves it decides."""
    engine = engine_of(program, tenant.name)
    serves = f"`{engine}`" if kind_of(tenant.ctor).trains else f"the engine of `{engine}`"
    colocated = program.singletons["colocate"].settings["value"]
    listed = colocated.value if isinstance(colocated.value, list) else []
    message = (
        f"`{tenant.name}` in `colocate` has no effect: it has no device of its own, because "
        f"`{engine}` serves it"
    )
    at = colocated.origin.span or tenant.name_span
    found = [
        error("F113", "bad-value", message, at, help="remove it from the list")
        for ref in listed
        if ref.name == tenant.name
    ]
    for key, setting in tenant.settings.items():
        own = ("served_by", *OWN_SETTINGS)
        if setting.origin.layer == "default" or key.startswith(own):
            continue
        message = f"`{key}` of `{tenant.name}` has no effect: {serves} serves it"
        label = setting_label(tenant, "served_by")
        remedy = f"remove it; what `{engine}` sets is true of both"
        at = setting.origin.span or tenant.name_span
        found.append(error("F113", "bad-value", message, at, related=label, help=remedy))
    return found


def served_by_trainer(request: Request, name: str) -> Request | None:
    """Return the request in which the trainer serves this frozen service; None if it cannot."""
    decl, trainer = request.program.services.get(name), request.trainer
    if decl is None or name == trainer or is_tenant(request.program, name):
        return None
    served = decl.settings.get("served_by")
    if served is None or not kind_of(decl.ctor).trains:
        return None
    served = replace(served, value=Ref(name=trainer))
    tenant = replace(decl, settings={**decl.settings, "served_by": served})
    program = replace(request.program, services={**request.program.services, name: tenant})
    if [*_of_trainer(program, trainer, tenant)] or [*_of_model(program, tenant, None)]:
        return None
    return replace(
        request, program=program, tenant_ranks={**request.tenant_ranks, name: 0},
        meshes=tuple(mesh for mesh in request.meshes if mesh.service != name),
        rows={each: rows for each, rows in request.rows.items() if each != name},
    )  # fmt: skip


def with_ranks(request: Request, services: Iterable[str], base_dir: Path | None) -> Request:
    """Add the rank of the adapter of each tenant; 0 if it answers with the base. The rank of an
    adapter on the hub is not known before the run, and taken to be the policy's."""
    from forgedsl.adapters import UnfitAdapter, read_adapter

    found = {}
    for name in (n for n in services if is_tenant(request.program, n)):
        engine = engine_of(request.program, name)
        models = [request.program.models[model_of(request.program.services[n])]
                  for n in (name, engine)]  # fmt: skip
        adapter, merged = (model.settings["adapter"].value for model in models)
        found[name] = 0
        if isinstance(adapter, Constructor) and _plain(adapter) != _plain(merged):
            trained = number(request.program.services[request.trainer], "lora.rank", 1)
            folder = _folder(adapter, base_dir)
            try:
                found[name] = trained if folder is None else read_adapter(folder).rank
            except UnfitAdapter:  # P217 reports it
                found[name] = trained
    return replace(request, tenant_ranks=found)


def _folder(adapter: Constructor, base_dir: Path | None) -> Path | None:
    """Return the folder of an adapter beside the file; None if it is elsewhere or missing, which
    P210 reports."""
    if adapter.name != "local" or base_dir is None:
        return None
    folder = locate(str(adapter.args["path"]), base_dir)
    return folder if folder.exists() else None


def _plain(value: object) -> object:
    """Return a value that equals that of the same text elsewhere."""
    return (value.name, dict(value.args)) if isinstance(value, Constructor) else value
