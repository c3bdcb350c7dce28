"""Merges the adapter of a model into its weights, once in a run.

    folder of the base, folder of the adapter --merged_folder--> RUN/models/NAME

Trainers, engines and frozen models load the merged folder as they load any other. The file
`merged.json` names the base and the adapter. It is written last: a folder without it is incomplete
and is made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from forgedsl.adapters import (
    PREFIX,
    WEIGHTS,
    A,
    Adapter,
    B,
    UnfitAdapter,
    misfit,
    model_shapes,
    outside,
    read_adapter,
)
from forgedsl.errors import LaunchError
from forgedsl.sizes.params import adapter_slot_rank

MADE_OF = "merged.json"


def check_adapter(folder: Path, adapter: Path, origin: str) -> Adapter:
    """Read the adapter in folder `adapter`, and check that it fits the model in `folder`.

    Raises:
        LaunchError: there is no adapter, adapters of its kind cannot be merged, or it does not fit
            the model.
    """
    try:
        found = read_adapter(adapter)
    except UnfitAdapter as why:
        raise LaunchError(f"{origin}: the adapter cannot be merged: {why}") from why
    shapes = model_shapes(folder)
    if not shapes:
        raise LaunchError(f"{origin}: the model has no *.safetensors to merge its adapter into")
    if wrong := misfit(found, shapes):
        raise LaunchError(f"{origin}: the adapter does not fit the model: {wrong}")
    return found


def check_added(folder: Path, adapter: Path, origin: str) -> None:
    """Check that an engine with the model in `folder` can add the adapter in folder `adapter`.

    Raises:
        LaunchError: it does not fit the model, or the engine cannot add it.
    """
    found = check_adapter(folder, adapter, origin)
    if not adapter_slot_rank(found.rank):
        raise LaunchError(f"{origin}: the adapter has rank {found.rank}, more than an engine takes")
    if layer := outside(found):
        raise LaunchError(f"{origin}: an engine cannot add an adapter to `{layer}`")


def merged_folder(folder: Path, adapter: Path, target: Path, *, wide: bool, origin: str) -> Path:
    """Merge the adapter into the model in `folder`; write the result to `target`, unless it exists.
    Products are computed in float32. Merged weights are written in the dtype of their file, or in
    float32 if `wide` is set.

    Raises:
        LaunchError: the adapter does not fit, or there is no disk space.
    """
    weights = (adapter / WEIGHTS).read_bytes()
    key = {"adapter": hashlib.sha256(weights).hexdigest(), "base": str(folder), "wide": wide}
    made_of = target / MADE_OF
    if made_of.is_file() and json.loads(made_of.read_text(encoding="utf-8")) == key:
        return target
    found = check_adapter(folder, adapter, origin)
    shutil.rmtree(target, ignore_errors=True)
    try:
        target.mkdir(parents=True)
        for file in sorted(folder.iterdir()):
            if file.suffix == ".safetensors":
                _merge_file(file, found, adapter, target / file.name, wide=wide)
            elif file.is_file():
                shutil.copyfile(file, target / file.name)
        made_of.write_text(json.dumps(key), encoding="utf-8")
    except Exception as error:  # safetensors has an exception of its own for a full disk
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise LaunchError(f"{origin}: cannot write the merged model to {target}: {error}") from None
    return target


def _merge_file(file: Path, found: Adapter, adapter: Path, target: Path, *, wide: bool) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    state = load_file(file)
    with safe_open(adapter / WEIGHTS, framework="pt") as halves, torch.no_grad():
        for name in found.layers.keys() & state.keys():
            layer = PREFIX + name.removesuffix(".weight")
            down, up = (halves.get_tensor(layer + half).float() for half in (A, B))
            weight = state[name]
            whole = weight.float() + found.scale * (up @ down)
            state[name] = whole if wide else whole.to(weight.dtype)
    save_file(state, target, metadata={"format": "pt"})
    target.chmod(0o644)
