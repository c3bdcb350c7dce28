"""Adapters (LoRA, arXiv 2106.09685) by torchtitan's converter: W + alpha / rank * B A, W frozen.

    config --with_adapters--> config      state dict --merged--> that of a model without adapters
                                                     --base--> the same, adapters left out
                                                     --peft_layers--> adapters under PEFT's names
                                                     --alone--> the same, for an engine
    model --left_out--> computes with W alone, for a while

Queries, keys and values have adapters of their own, as in PEFT, so they are not fused here. Used
only by `model.py`, which wraps torchtitan; import nothing of torchtitan at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor

from forgedsl.adapters import A as PEFT_A
from forgedsl.adapters import B as PEFT_B
from forgedsl.lower import job as spec
from forgedsl_runtime.services.titan.upstream.draws import parameters

LAYERS = ["wq", "wkv", "wo", "w1", "w2", "w3"]
A, B = ".lora_a.weight", ".lora_b.weight"


def with_adapters(config: Any, lora: spec.Lora | None) -> Any:
    """Return a model config whose linear layers have adapters; nothing else is trained."""
    if lora is None:
        return config
    from torchtitan.components.lora import LoRAConverter

    class Converter(LoRAConverter):
        def _make_lora_config(self, cfg: Any) -> Any:
            made = super()._make_lora_config(cfg)
            given = {f.name: getattr(made, f.name) for f in fields(made) if f.init}
            return _removable(type(made)._owner, type(cfg)._owner).Config(**given)

    for layer in config.layers:
        layer.attention.qkv_linear = _apart(layer.attention.qkv_linear)
    # the linear layers of an MLP, or of shared experts
    mlp = any(each.moe is None or each.moe.shared_experts is not None for each in config.layers)
    names = LAYERS if mlp else LAYERS[:3]
    settings = LoRAConverter.Config(rank=lora.rank, alpha=lora.alpha, target_modules=names)
    return Converter(settings).convert(config)


@cache
def _removable(adapted: Any, plain: Any) -> Any:
    """Return the class of a linear layer with an adapter that can be left out. `adapted` is
    torchtitan's class of the layer, and `plain` that of the same layer without an adapter."""

    from torchtitan.models.common.param_init import skip_param_init

    class Removable(adapted):
        @dataclass(kw_only=True, slots=True)
        class Config(adapted.Config):
            pass

        left_out = False

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            # `draw` initializes it. A draw here would change the random weights drawn after it.
            self.lora_a._param_init = {"weight": skip_param_init}

        def forward(self, input: Tensor) -> Tensor:
            layer = plain if self.left_out else adapted
            out: Tensor = layer.forward(self, input)
            return out

    return Removable


@contextmanager
def left_out(model: torch.nn.Module) -> Iterator[None]:
    """Let a model compute with the weights alone, as if it had no adapters."""
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "left_out")]
    for layer in layers:
        layer.left_out = True
    try:
        yield
    finally:
        for layer in layers:
            layer.left_out = False


def _apart(fused: Any) -> Any:
    """Return the same projections as separate layers."""
    from torchtitan.models import qwen3
    from torchtitan.models.common.attention import QKVLinear
    from torchtitan.models.common.linear import Linear

    def linear(heads: int) -> Any:
        return Linear.Config(
            in_features=fused.wqkv.in_features,
            out_features=heads * fused.head_dim,
            bias=fused.wqkv.bias,
            param_init=qwen3._LINEAR_INIT,  # the draws of a fused layer, in the same order
        )

    return QKVLinear.Config(
        head_dim=fused.head_dim, wq=linear(fused.n_heads), wkv=linear(fused.n_kv_heads)
    )


def draw(model: torch.nn.Module, shapes: Mapping[str, torch.Size]) -> None:
    """Initialize A, equal for any number of ranks. If each rank drew its own shard with the same
    seed, all shards would have equal rows, and training would keep them equal. `shapes` are those
    of the whole model: a pipeline stage has only some of its layers."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    generator = torch.Generator().manual_seed(0)
    here = parameters(model)
    assert {name for name in here if name.endswith(A)} <= shapes.keys()
    with torch.no_grad():
        for name, shape in shapes.items():
            if name.endswith(A):
                drawn = torch.empty(shape)
                torch.nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=generator)
                if (value := here.get(name)) is None:
                    continue
                whole = drawn.to(value.device, value.dtype)
                if isinstance(value, DTensor):
                    whole = distribute_tensor(whole, value.device_mesh, value.placements)
                value.copy_(whole)


def merged(state: dict[str, Tensor], lora: spec.Lora | None) -> dict[str, Tensor]:
    """Return `state` with the adapters merged into their weights and removed."""
    if lora is None:
        return state
    found = dict(state)
    with torch.no_grad():
        for name in [name for name in state if name.endswith(A)]:
            layer = name.removesuffix(A)
            change = found.pop(layer + B) @ found.pop(name)
            found[f"{layer}.weight"] = found[f"{layer}.weight"] + lora.alpha / lora.rank * change
    return found


def base(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` without the adapters: the weights that they are added to."""
    return {name: value for name, value in state.items() if not name.endswith((A, B))}


def alone(
    state: Mapping[str, Tensor],
    lora: spec.Lora,
    to_hf: Callable[[dict[str, Tensor]], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Return the adapters under PEFT's names, from whole tensors. B is multiplied by alpha / rank
    here, so that engines need not scale."""
    found = {}
    for layer, (down, up) in peft_layers(state, to_hf).items():
        found[layer + PEFT_A] = down
        found[layer + PEFT_B] = lora.alpha / lora.rank * up
    return found


def peft_layers(
    state: Mapping[str, Tensor], to_hf: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A [rank, in] and B [out, rank] by the Hugging Face name of their layer, such as
    `model.layers.0.self_attn.q_proj`. `to_hf` renames weights, and reorders the rows of some."""
    found = {}
    for name in [name for name in state if name.endswith(A)]:
        layer = name.removesuffix(A)
        down, up = state[name], state[layer + B]
        # `to_hf` takes only whole weights, so put `up` into the first columns of one
        rank, width = down.shape
        wide = torch.nn.functional.pad(up, (0, max(width - rank, 0)))
        ((there, reordered),) = to_hf({f"{layer}.weight": wide}).items()
        found[there.removesuffix(".weight")] = (down, reordered[:, :rank].contiguous())
    return found
