"""torchtitan model configs: from a job's model to torchtitan's own `ModelSpec`, adapted.

A published size comes from torchtitan's registry, explicit sizes from its builders. Two parts are
replaced through torchtitan's configuration system: the inner attention (SDPA over a block-causal
mask; FlexAttention has no CPU backward) and the lm_head (`LossHead`, which hands hidden states and
weight to the loss inside its own forward, so that FSDP's hooks around lm_head apply to the loss as
they do to logits). Part of the adapter in `titan.py`; import nothing of torchtitan at module level.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec

HeadFn = Callable[[Tensor, Tensor, dict[str, Any]], Any]
"""hidden [R, L, H], lm_head weight [V, H], and where tensor parallelism splits the vocabulary its
`group` and `vocabulary` -> whatever the model's forward shall return"""


def model_spec(model: spec.Model, folder: Path) -> Any:
    """torchtitan's ModelSpec for the model's architecture."""
    config_file = folder / "config.json"
    if model.arch is not None and model.arch.size is not None:
        return _registered(model.arch.family, model.arch.size)
    if model.arch is not None:
        return _qwen3(model.arch.family, dict(model.arch.dims), model.context or 4096)
    if not config_file.exists():
        raise LaunchError(f"{folder.name} has no config.json and the model names no architecture")
    hf = json.loads(config_file.read_text())
    rope = hf.get("rope_parameters") or {}
    dims = {
        "layers": hf["num_hidden_layers"],
        "hidden": hf["hidden_size"],
        "heads": hf["num_attention_heads"],
        "kv_heads": hf["num_key_value_heads"],
        "head_dim": hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        "ffn": hf["intermediate_size"],
        "vocab": hf["vocab_size"],
        "rope_theta": rope.get("rope_theta", hf.get("rope_theta", 1_000_000.0)),
        "tied": hf.get("tie_word_embeddings", False),
    }
    return _qwen3(hf["model_type"], dims, model.context or hf["max_position_embeddings"])


def _registered(family: str, size: str) -> Any:
    from importlib import import_module

    try:
        registry = import_module(f"torchtitan.models.{family}").model_registry
        return registry(size)
    except (ImportError, KeyError) as error:
        raise LaunchError(f'torchtitan has no model {family}("{size}")') from error


def _qwen3(family: str, dims: dict[str, Any], context: int) -> Any:
    """A dense Qwen3 of explicit sizes, from torchtitan's own builders."""
    from torchtitan.models import qwen3
    from torchtitan.models.common import CosSinRoPE, Embedding, Linear

    if family != "qwen3":
        raise LaunchError(f'no explicit sizes for architecture "{family}"; qwen3 has them')
    hidden, vocab, head_dim = dims["hidden"], dims["vocab"], dims["head_dim"]
    tied = bool(dims.get("tied", True))
    config = qwen3.Qwen3Model.Config(
        vocab_size=vocab,
        dim=hidden,
        norm=qwen3._qwen3_norm(hidden),
        enable_weight_tying=tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab,
            embedding_dim=hidden,
            param_init=qwen3._EMBEDDING_SKIP_INIT if tied else qwen3._EMBEDDING_INIT,
        ),
        lm_head=Linear.Config(
            in_features=hidden, out_features=vocab, param_init=qwen3._LINEAR_INIT
        ),
        layers=qwen3._build_qwen3_layers(
            n_layers=dims["layers"],
            dim=hidden,
            n_heads=dims["heads"],
            n_kv_heads=dims["kv_heads"],
            head_dim=head_dim,
            hidden_dim=dims["ffn"],
            attn_backend="flex",
            rope=CosSinRoPE.Config(
                dim=head_dim,
                max_seq_len=context,
                theta=float(dims.get("rope_theta", 1_000_000.0)),
            ),
        ),
    )
    spec_ = qwen3.model_registry("0.6B")
    return dataclasses.replace(spec_, flavor="custom", model=config)


def adapt_config(config: Any, model: spec.Model, service: spec.TitanService) -> Any:
    """Our attention and lm_head in torchtitan's model config; RoPE sized to the context."""
    classes = _module_classes()
    context = model.context or config.max_seq_len
    if service.batch.seq_len > config.max_seq_len:
        raise LaunchError(
            f"batch.seq_len = {service.batch.seq_len} exceeds the model's context "
            f"of {config.max_seq_len} tokens"
        )
    for layer in config.layers:
        layer.attention.inner_attention = classes.attention.Config()
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
    from torchtitan.models.common.linear import Linear
    from torchtitan.protocols.module import Module

    class BlockCausalAttention(Module):
        """Scaled dot-product attention under a boolean [R, 1, L, L] mask."""

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

    return SimpleNamespace(attention=BlockCausalAttention, loss_head=LossHead)
