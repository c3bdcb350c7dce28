"""P217: the adapter of a model cannot be merged into it. F113, P216: a sync cannot send the adapter
alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.families.base import Unsupported
from forgedsl.ir.graph import Node
from forgedsl.ir.program import Constructor, Decl, model_of
from forgedsl.plan.model_dims import read_model
from forgedsl.services.registry import kind_of
from forgedsl.shipped import locate
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import number, value, written_at
from forgedsl.sizes.params import SLOT_RANKS, adapter_slot_rank
from forgedsl.source import Span

MADE = "`forgec export RUN --adapter` and PEFT's `save_pretrained` write such a folder"
MERGE = "leave `weights` out: all weights are sent, with the adapter merged into them"
MERGED = "merge the adapter with PEFT, and name the result as the `source`"


def check_adapter(model: Decl, base_dir: Path | None) -> list[Diagnostic]:
    """P217: the model has random weights, or the folder beside the file has no adapter, an adapter
    of a kind that cannot be merged, or one of another model. A run checks folders of the hub at its
    start."""
    adapter, source = model.settings["adapter"].value, model.settings["source"].value
    if not isinstance(adapter, Constructor) or not isinstance(source, Constructor):
        return []
    from forgedsl.adapters import UnfitAdapter, misfit, model_shapes, read_adapter

    def refused(why: str, remedy: str) -> list[Diagnostic]:
        message = f"the adapter of `{model.name}` cannot be merged: {why}"
        return [error("P217", "adapter", message, adapter.span, help=remedy)]

    if source.name == "random":
        return refused("the model has random weights", 'name its base as `source`: hf("...")')
    if adapter.name != "local" or base_dir is None:
        return []
    folder = locate(str(adapter.args["path"]), base_dir)
    if not folder.exists():
        return []  # P210 reports it
    try:
        found = read_adapter(folder)
    except UnfitAdapter as why:
        return refused(str(why), MADE if "has no" in str(why) else MERGED)
    if source.name != "local":
        return []
    shapes = model_shapes(locate(str(source.args["path"]), base_dir))
    wrong = misfit(found, shapes) if shapes else ""
    if not wrong:
        return []
    return refused(wrong, "name the model that the adapter was trained on as `source`")


def check_published_adapters(request: Request, base_dir: Path | None) -> list[Diagnostic]:
    """F113, P216: syncs with `weights = adapter` whose trainer has none, or sends all weights
    elsewhere, or whose engine cannot add it to its base weights."""
    found = []
    for sync in request.syncs:
        if sync.settings.get("weights") != "adapter":
            continue
        trainer = request.program.services[sync.target]
        if not number(trainer, "lora.rank", 0):
            message = f"`weights = adapter` has no effect: `{trainer.name}` has no `lora`"
            help_text = "set its `lora { rank = 16 }`, or remove `weights`"
            found.append(error("F113", "bad-value", message, sync.span, help=help_text))
            continue
        for why, at, help_text in _obstacles(request, sync, base_dir):
            where = "" if at is None else " together with"
            message = f"`weights = adapter` is not supported{where} {why}"
            label = () if at is None else (Label(text="written here", span=at),)
            found.append(
                error("P216", "not-carried-out", message, sync.span, related=label, help=help_text)
            )
    return found


def _obstacles(
    request: Request, sync: Node, base_dir: Path | None
) -> Iterator[tuple[str, Span | None, str]]:
    """Yield why an engine cannot add the adapter of a trainer to its base, where that is written,
    and what works instead."""
    program = request.program
    trainer, engine = program.services[sync.target], program.services[sync.settings["target"]]
    model = program.models[model_of(engine)]
    if any(
        other.target == sync.target and other.settings.get("weights") != "adapter"
        for other in request.syncs
    ):
        why = f"another sync of `{trainer.name}` that sends merged weights"
        yield why, None, "write `weights = adapter` in both, or in none"
    if not kind_of(engine.ctor).adds_adapters:
        yield f"`{engine.name}`, which cannot add one to its weights", engine.name_span, MERGE
    if value(engine, "engine.weight_dtype") == "fp8":
        at = written_at(engine, "engine.weight_dtype")
        yield f"`engine.weight_dtype = fp8` of `{engine.name}`", at, f"remove one of them; {MERGE}"
    rank = number(trainer, "lora.rank", 0)
    if not adapter_slot_rank(rank):
        at = written_at(trainer, "lora.rank")
        yield f"`lora.rank = {rank}`", at, f"`lora.rank = {SLOT_RANKS[-1]}` is vLLM's largest"
    source = model.settings["source"].value
    if isinstance(source, Constructor) and source.name == "random":
        why = f"random weights of `{model.name}`, which `{engine.name}` cannot load as its base"
        yield why, written_at(model, "source"), MERGE
    if model_of(trainer) != model.name:
        why = f"a model of `{engine.name}` that is not that of `{trainer.name}`"
        yield why, engine.name_span, f"`{engine.ctor}({model_of(trainer)})`"
    dims = request.dims[engine.name]
    if dims is not None and dims.experts:
        yield f"the experts of `{model.name}`", written_at(model, "source"), MERGE
    dtype = str(value(engine, "dtype") or model.settings["dtype"].value)
    if value(trainer, "optimizer.precision") == "bf16" and dtype != "bf16":
        why = f"weights that `{trainer.name}` stores in bf16 and `{engine.name}` in {dtype}"
        yield why, written_at(trainer, "optimizer.precision"), "`dtype = bf16` of both"
    try:
        known = read_model(model, base_dir)
    except Unsupported:
        return  # P213 reports it
    if known is not None and known[0].joins_layers:
        why = f"the family {known[0].name}, whose queries, keys and values are one layer in vLLM"
        yield why, written_at(model, "source"), MERGE
