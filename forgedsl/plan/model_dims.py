"""Finds family and dimensions of a declared model: from its `arch`, config.json, or name on the
hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Diagnostic, error
from forgedsl.families import registry
from forgedsl.families.base import Dims, Family, Misshapen, Unsupported, difference
from forgedsl.ir.program import Constructor, Decl
from forgedsl.shipped import locate
from forgedsl.source import Span


def dims_of(model: Decl, base_dir: Path | None) -> Dims | None:
    """Return the dimensions of a declared model; None if they are unknown before it runs, or
    unsupported."""
    try:
        found = read_model(model, base_dir)
    except Unsupported:
        return None
    return None if found is None else found[1]


def read_model(model: Decl, base_dir: Path | None) -> tuple[Family, Dims] | None:
    """Return family and dimensions of a declared model; None if they are unknown here.

    Raises:
        Unsupported: this version does not support it.
    """
    arch, source = model.settings["arch"].value, model.settings["source"].value
    if isinstance(arch, Constructor):
        given = {k: v for k, v in arch.args.items() if v is not None}
        family, context = registry.family(arch.name), model.settings["context"].value
        size = given.pop("size", None)
        return family, family.dims(size, given, context if isinstance(context, int) else None)
    if not isinstance(source, Constructor):
        return None
    if source.name == "hf":
        return registry.by_hub_name(str(source.args["id"]))
    config = local_config(model, base_dir)
    return None if config is None else registry.by_config(config)


def check_family(model: Decl, base_dir: Path | None, *, cache: bool = False) -> list[Diagnostic]:
    """P213: the model's family is unsupported, or differs from the declared one. With `cache`, a
    config.json in the hub's cache is read too."""
    try:
        found = read_model(model, base_dir)
        config = cached_config(model) if cache else local_config(model, base_dir)
        if config is None:
            return []
        family, there = registry.by_config(config)
        found = found or (family, there)
        why = difference(found[1], there)
        if family.model_type != found[0].model_type:
            why = f"model_type {family.model_type}, not {found[0].model_type}"
        context = model.settings["context"]
        if why:
            message, key = (
                f"the config.json of `{model.name}` differs from its `arch`: {why}",
                "arch",
            )
            help_ = "leave `arch` out; the compiler then reads it from the source"
        elif isinstance(context.value, int) and context.value > there.context:
            message = (
                f"`{model.name}` has context {context.value}, but its config.json allows "
                f"only {there.context} positions"
            )
            key, help_ = "context", f"`context` <= {there.context}, or leave it out"
        else:
            return []
    except Unsupported as reason:
        message, key = f"model `{model.name}`: {reason}", "source"
        help_ = f"supported families are {registry.names()}"
        if isinstance(reason, Misshapen):
            key, help_ = (
                "arch",
                (
                    "change the dimensions, or name a published size and only the "
                    "dimensions that differ"
                ),
            )
    return [error("P213", "model-family", message, _written_at(model, key), help=help_)]


def _written_at(model: Decl, key: str) -> Span:
    return model.settings[key].origin.span or model.name_span


def cached_config(model: Decl) -> Mapping[str, Any] | None:
    """Read config.json of a hub model from the cache; None if it is not there."""
    source = model.settings["source"].value
    if not isinstance(source, Constructor) or source.name != "hf":
        return None
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub"))
    folder = cache / f"models--{str(source.args['id']).replace('/', '--')}"
    wanted = str(source.args.get("revision") or "main")
    ref = folder / "refs" / wanted
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else wanted
    return _read(folder / "snapshots" / commit / "config.json")


def _read(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    import json  # only models on disk need it

    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def local_config(model: Decl, base_dir: Path | None) -> Mapping[str, Any] | None:
    """Read config.json of a local model; None if there is none."""
    source = model.settings["source"].value
    if not isinstance(source, Constructor) or source.name != "local" or base_dir is None:
        return None
    return _read(locate(str(source.args["path"]), base_dir) / "config.json")
