"""Phi-3 and Phi-4 on torchtitan: Llama's layers with joined tensors in files.

Files hold queries, keys and values of a layer as one tensor, and gate and up projections as
another.

    q_proj, k_proj, v_proj --to_hf--> qkv_proj --from_hf--> q_proj, k_proj, v_proj

vLLM accepts the separate tensors, so a weight sync joins none; only exported files have joined
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.families.decoder import adapter_class, decoder_spec

JOINED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""names in files -> the parts that they join along the first dimension"""


def build(dims: Dims) -> Any:
    """Return the ModelSpec of a Phi-3 model."""
    from torchtitan.models.llama3 import Llama3TransformerBlock, model_registry

    like = model_registry("debugmodel")
    return decoder_spec(dims, like, Llama3TransformerBlock, adapter=_adapter(dims))


def join(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Join the parts of each layer, which may come in any order, as soon as all are there."""
    home = {part: name for name, parts in JOINED.items() for part in parts}
    waiting: dict[str, dict[str, Any]] = {}
    for name, value in weights:
        prefix, part = _place(name)
        if part not in home:
            yield name, value
            continue
        joined = f"{prefix}{home[part]}.weight"
        found = waiting.setdefault(joined, {})
        found[part] = value
        wanted = JOINED[home[part]]
        if len(found) == len(wanted):
            yield joined, _cat([found[each] for each in wanted])
            del waiting[joined]


def split(weights: Iterable[tuple[str, Any]], dims: Dims) -> Iterator[tuple[str, Any]]:
    """Split what `join` joined."""
    query, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    sizes = {"self_attn.qkv_proj": (query, kv, kv), "mlp.gate_up_proj": (dims.ffn, dims.ffn)}
    for name, value in weights:
        prefix, joined = _place(name)
        if joined not in JOINED:
            yield name, value
            continue
        for part, found in zip(JOINED[joined], _split(value, sizes[joined]), strict=True):
            yield f"{prefix}{part}.weight", found


def _place(name: str) -> tuple[str, str]:
    """Split the name of a layer's weight: `model.layers.3.self_attn.q_proj.weight` gives
    `model.layers.3.` and `self_attn.q_proj`. For any other name the second part is ""."""
    parts = name.removesuffix(".weight").split(".")
    if len(parts) != 5 or parts[1] != "layers":
        return name, ""
    return f"{'.'.join(parts[:3])}.", ".".join(parts[3:])


def _cat(parts: list[Any]) -> Any:
    first = parts[0]
    if not isinstance(first, DTensor):
        return torch.cat(parts)
    joined: Any = torch.cat(parts)
    return joined.redistribute(first.device_mesh, first.placements)


def _split(value: Any, sizes: tuple[int, ...]) -> list[Any]:
    if not isinstance(value, DTensor):
        return list(value.split(sizes))
    # a shard of the joined tensor holds other rows than a shard of each part
    whole: Any = value.full_tensor()
    return [
        distribute_tensor(part, value.device_mesh, value.placements, src_data_rank=None)
        for part in whole.split(sizes)
    ]


@cache
def _adapter(dims: Dims) -> type:
    base: Any = adapter_class()

    class Joined(base):
        """Adapter of files in which some tensors of a layer are joined."""

        def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
            return dict(join(super().to_hf(state_dict).items()))

        def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = super().from_hf(dict(split(hf_state_dict.items(), dims)))
            return found

        def published(self, state: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = base.to_hf(self, state)
            return found

        def in_files(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
            return join(weights)

    return Joined
