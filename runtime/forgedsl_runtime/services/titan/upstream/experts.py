"""Experts split over ranks: gather whole tensors for generators and exports; measure their load.

    w1, w3, w2 of a layer's experts --names--> experts.gate_up_proj, experts.down_proj
                                    --split--> experts.0.gate_proj, experts.0.up_proj, ...

torchtitan keeps the experts of a layer in three tensors, whose first dimension may be spread over
ranks; its own adapter names only the experts of this rank. Generators take a layer's experts as two
tensors, so that a weight sync sends few tensors. Files have one tensor per expert and projection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

GROUPED = ".inner_experts."
"""part of torchtitan's names of weights of all experts of a layer"""
FUSED = ("gate_up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Stacked:
    """Weights of a layer's experts that other frameworks keep in one tensor: `parts`, joined along
    the second dimension. Each part stays sharded until it is gathered."""

    parts: tuple[Tensor, ...]
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        return (first[0], sum(part.shape[1] for part in self.parts), *first[2:])

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point


def split_experts(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of experts, and all others."""
    experts = {name: value for name, value in state.items() if GROUPED in name}
    return experts, {name: value for name, value in state.items() if name not in experts}


def stack_experts(experts: Mapping[str, Tensor], adapter: Any) -> dict[str, Stacked]:
    """Return the weights of experts under the names that generators expect."""
    names = {own: hf for hf, own in adapter.from_hf_map.items() if own and GROUPED in own}
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in experts.items():
        layer = re.findall(r"\d+", name)[0]
        prefix, projection = names[name.replace(f".{layer}.", ".{}.", 1)].split(".{}.")[-2:]
        place = f"model.layers.{layer}.{prefix}"
        found.setdefault(place, {})[projection.removesuffix("_proj.weight")] = value
    whole: dict[str, Stacked] = {}
    for place, each in found.items():
        dtype = each["gate"].dtype
        whole[f"{place}.{FUSED[0]}"] = Stacked((each["gate"], each["up"]), dtype)
        whole[f"{place}.{FUSED[1]}"] = Stacked((each["down"],), dtype)
    return whole


def split(name: str, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a gathered tensor under the names that it has in files."""
    place, _, last = name.rpartition(".")
    if last not in FUSED:
        yield name, whole
        return
    names = ("gate_proj", "up_proj") if last == FUSED[0] else ("down_proj",)
    for index, expert in enumerate(whole):
        for projection, part in zip(names, expert.chunk(len(names)), strict=True):
            yield f"{place}.{index}.{projection}.weight", part


def sizes_of_experts(config: Any) -> tuple[int, int, int] | None:
    """Return the layers of a model, the experts of a layer, and the experts of a token; None if no
    layer has experts."""
    found = [layer.moe for layer in config.layers if getattr(layer, "moe", None) is not None]
    if not found:
        return None
    return len(config.layers), max(moe.num_experts for moe in found), found[0].router.top_k


class Load:
    """Counts the tokens that the experts of a model get in an update, over all ranks."""

    def __init__(self, model: nn.Module, config: Any, device: torch.device) -> None:
        here: Any = model.layers
        self._by_layer = {
            int(name): layer.moe
            for name, layer in here.items()
            if getattr(layer, "moe", None) is not None
        }
        self._shape = (sizes_of_experts(config) or (len(config.layers), 0))[:2]
        self._device = device

    def begin(self) -> None:
        """Reset the counts, at the start of an update."""
        for experts in self._by_layer.values():
            experts.tokens_per_expert_E.zero_()

    def load_imbalance(self) -> float | None:
        """Return the tokens of the busiest expert of a layer divided by the mean over experts,
        averaged over layers (a collective, of all ranks); None if no layer has experts."""
        if not self._shape[1]:
            return None
        # other pipeline stages fill other rows
        table = torch.zeros(self._shape, device=self._device)
        for layer, experts in self._by_layer.items():
            table[layer] = _local(experts.tokens_per_expert_E)
        torch.distributed.all_reduce(table)
        used = table[table.sum(1) > 0]
        return float((used.amax(1) / used.mean(1)).mean())


def _local(value: Tensor) -> Tensor:
    own: Any = value
    found: Tensor = own.to_local() if hasattr(value, "to_local") else value
    return found
