"""Folders of LoRA adapters in the layout of PEFT: what can be merged into a model, and how.

    adapter_config.json, header of adapter_model.safetensors --read_adapter--> Adapter
    Adapter, names and shapes of the model's weights --misfit--> what is wrong, or ""

The compiler uses it for folders beside the file. A run uses it too, and then merges the adapter.
Only headers are read here, so that nothing needs torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "alpha_pattern": (None, {}),
    "rank_pattern": (None, {}),
}
"""settings of PEFT, with the values that can be merged; a missing setting is fine"""
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""linear layers to which an engine can add adapters; experts have none"""

Shapes = Mapping[str, tuple[int, ...]]


class UnfitAdapter(Exception):
    """A folder that is not an adapter, or is an adapter of a kind that cannot be merged."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter (2106.09685): W + scale * B A for each of its layers."""

    rank: int
    scale: float
    """alpha / rank, or alpha / sqrt(rank) of rsLoRA (2312.03732)"""
    layers: Mapping[str, tuple[int, int]]
    """rows and columns of weights by name, such as `model.layers.0.self_attn.q_proj.weight`"""


def read_adapter(folder: Path) -> Adapter:
    """Return the adapter in a folder.

    Raises:
        UnfitAdapter: the folder has no adapter, or one of a kind that cannot be merged.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UnfitAdapter(f"it has no {name}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        shapes = tensor_shapes(folder / WEIGHTS)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise UnfitAdapter(f"its files cannot be read ({error})") from error
    for key, allowed in NEUTRAL.items():
        if key in config and config[key] not in allowed:
            raise UnfitAdapter(f"`{key}` is {json.dumps(config[key])}, which cannot be merged")
    layers = {}
    for name in sorted(shapes):
        layer = name.removeprefix(PREFIX).removesuffix(A).removesuffix(B)
        down, up = shapes.get(PREFIX + layer + A, ()), shapes.get(PREFIX + layer + B, ())
        if len(down) != 2 or len(up) != 2 or down[0] != rank or up[1] != rank:
            raise UnfitAdapter(f"`{name}` is not matrix A or B of an adapter of rank {rank}")
        layers[layer + ".weight"] = (up[0], down[1])
    if not layers:
        raise UnfitAdapter("it has no layers")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return Adapter(rank=rank, scale=scale, layers=layers)


def misfit(adapter: Adapter, shapes: Shapes) -> str:
    """Return why an adapter does not fit a model with weights of these shapes; "" if it does."""
    for name, (rows, columns) in adapter.layers.items():
        found = shapes.get(name)
        if found is None:
            return f"the model has no weight `{name}`"
        if tuple(found) != (rows, columns):
            there = " x ".join(map(str, found))
            return f"`{name}` is {there} in the model and {rows} x {columns} in the adapter"
    return ""


def outside(adapter: Adapter) -> str:
    """Return the layer of an adapter to which an engine cannot add it; "" if there is none."""
    layers = (name.removesuffix(".weight") for name in adapter.layers)
    return next((layer for layer in layers if not layer.endswith(LAYERS)), "")


def model_shapes(folder: Path) -> Shapes:
    """Return names and shapes of the weights in the *.safetensors of a folder."""
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= tensor_shapes(file)
    return found


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of a safetensors file.

    Raises:
        ValueError, struct.error: the file is not a safetensors file.
    """
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > file.stat().st_size:
            raise ValueError(f"{file.name} is no safetensors file")
        header = json.loads(stream.read(length))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
