"""torchtitan model configs: from a job's model to torchtitan's own `ModelSpec`, adapted.

Every model is read from its config.json and built by its family (`families/`). Two parts are
replaced through torchtitan's configuration system: the inner attention (on GPUs within the
sequences of one packed row; on CPUs, for which that has no kernels, SDPA over a mask) and the
lm_head (`LossHead`, which hands hidden states and weight to the loss inside its own forward, so
that FSDP's hooks around lm_head apply to the loss as they do to logits). Part of the adapter in `titan.py`; import nothing of torchtitan at module level.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from forgedsl.errors import LaunchError
from forgedsl.families import registry
from forgedsl.families.base import Dims, Family, Unsupported, difference
from forgedsl.lower import job as spec
from forgedsl.runtime.upstream import families

CAUSAL = 1
"""the memory-efficient kernel's name for a mask from the upper left corner"""
HeadFn = Callable[[Tensor, Tensor, dict[str, Any]], Any]
"""hidden [R, L, H], lm_head weight [V, H], and where tensor parallelism splits the vocabulary its
`group` and `vocabulary` -> whatever the model's forward shall return"""


class Stretches(NamedTuple):
    """Which tokens of one long row attend to each other: those of a stretch, backwards."""

    bounds: Tensor
    """int32 [D + 1], where stretches begin, and the row's length"""
    longest: int
    """at least as long as the longest stretch"""


def model_spec(model: spec.Model, folder: Path) -> Any:
    """torchtitan's ModelSpec for the model in `folder`, by its config.json.

    Raises:
        LaunchError: it belongs to no family, or is another one than the file declares.
    """
    family, dims = read_model(model, folder)
    return families.build(family, dims)


def read_model(model: spec.Model, folder: Path) -> tuple[Family, Dims]:
    """Family and dimensions of the model in `folder`, which must be those declared.

    Raises:
        LaunchError: they are not, or belong to no family.
    """
    config_file = folder / "config.json"
    if not config_file.exists():
        raise LaunchError(f"model folder {folder.name} has no config.json")
    try:
        family, dims = registry.by_config(json.loads(config_file.read_text()))
    except Unsupported as why:
        raise LaunchError(f"{folder.name}: {why}; there are {registry.names()}") from why
    if model.arch is not None:
        declared = registry.family(model.arch.family)
        named = declared.dims(model.arch.size, model.arch.dims, model.context)
        why_not = difference(named, dims)
        if declared.model_type != family.model_type:
            why_not = f"model_type {family.model_type}, not {declared.model_type}"
        if why_not:
            raise LaunchError(f"{folder.name} is not the declared `arch`: {why_not}")
    return family, dims


def adapt_config(config: Any, model: spec.Model, service: spec.TitanService) -> Any:
    """Our attention and lm_head in torchtitan's model config; RoPE sized to the context."""
    classes = _module_classes()
    context = model.context or config.max_seq_len
    if service.batch.seq_len > config.max_seq_len:
        raise LaunchError(
            f"batch.seq_len = {service.batch.seq_len} exceeds the model's context "
            f"of {config.max_seq_len} tokens"
        )
    attention = classes.masked if service.mesh.device == "cpu" else classes.packed
    for layer in config.layers:
        layer.attention.inner_attention = attention.Config()
        layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=context)
    head = config.lm_head
    config.lm_head = classes.loss_head.Config(
        **{f.name: getattr(head, f.name) for f in dataclasses.fields(head)}
    )
    return config


def keep_loss_whole(config: Any) -> None:
    """What the lm_head returns is a loss: no logits to be placed on the ranks of a mesh."""
    sharding = config.lm_head.sharding_config
    if sharding is not None:
        config.lm_head.sharding_config = dataclasses.replace(
            sharding, out_src_shardings=None, out_dst_shardings=None
        )


def local_parts(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """This rank's part of a weight that is split over the vocabulary, and how it is split.

    The gradient of hidden that a loss with a group returns is whole on each rank.
    """
    if not isinstance(weight, DTensor):
        return hidden, weight, {}
    shared = {"group": weight.device_mesh.get_group(), "vocabulary": weight.shape[0]}
    if isinstance(hidden, DTensor):
        hidden = hidden.to_local(grad_placements=[Replicate()])
    return hidden, weight.to_local(grad_placements=weight.placements), shared


def _module_classes() -> SimpleNamespace:
    """Subclasses of torchtitan modules; made once, after torchtitan knows its device."""
    from torch.nn.attention.varlen import varlen_attn
    from torchtitan.models.common.linear import Linear
    from torchtitan.protocols.module import Module

    class MaskedAttention(Module):
        """Scaled dot-product attention under a boolean [R, 1, L, L] mask (CPU)."""

        @dataclass(kw_only=True, slots=True)
        class Config(Module.Config):
            pass

        def __init__(self, config: Config) -> None:
            super().__init__()

        def forward(  # the TP plan places what is positional; a mask is the same on all ranks
            self,
            q_BLNH: Tensor,
            k_BLNH: Tensor,
            v_BLNH: Tensor,
            *,
            attention_masks: Tensor | None = None,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> Tensor:
            out = F.scaled_dot_product_attention(
                q_BLNH.transpose(1, 2),
                k_BLNH.transpose(1, 2),
                v_BLNH.transpose(1, 2),
                attn_mask=attention_masks,
                scale=scale,
                enable_gqa=enable_gqa,
            )
            return out.transpose(1, 2)

    class PackedAttention(Module):
        """Causal attention within `Stretches` of one row, without an L x L mask (GPU).

        16-bit numbers go through flash attention, f32 through the memory-efficient kernel.
        torchtitan's own module would switch to a build of flash attention that torch has not.
        """

        @dataclass(kw_only=True, slots=True)
        class Config(Module.Config):
            pass

        def __init__(self, config: Config) -> None:
            super().__init__()

        def forward(
            self,
            q_BLNH: Tensor,
            k_BLNH: Tensor,
            v_BLNH: Tensor,
            *,
            attention_masks: Stretches,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> Tensor:
            q, k, v = (x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH))
            bounds, longest = attention_masks
            if q.dtype == torch.float32:
                shared = q.shape[1] // k.shape[1]
                k, v = (x.repeat_interleave(shared, 1) for x in (k, v)) if shared > 1 else (k, v)
                attended, *_ = torch.ops.aten._efficient_attention_forward(
                    q[None], k[None], v[None], None, bounds, bounds, longest, longest,
                    0.0, CAUSAL, True, scale=scale,
                )  # fmt: skip
                return attended.view(q_BLNH.shape)  # type: ignore[no-any-return]
            out = varlen_attn(
                q, k, v, bounds, bounds, longest, longest,
                scale=scale, window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1],
            )  # fmt: skip
            assert isinstance(out, Tensor)  # and not its log-sum-exp as well
            return out.view(q_BLNH.shape)

    class LossHead(Linear):
        """lm_head that computes `head(hidden, weight)` where one is set, else logits."""

        @dataclass(kw_only=True, slots=True)
        class Config(Linear.Config):
            pass

        head: HeadFn | None = None

        def forward(self, input: Tensor) -> Any:
            if self.head is None:
                return super().forward(input)
            return self.head(*local_parts(input, self.weight))

    return SimpleNamespace(masked=MaskedAttention, packed=PackedAttention, loss_head=LossHead)
