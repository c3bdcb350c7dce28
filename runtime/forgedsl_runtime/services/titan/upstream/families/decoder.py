"""Common decoder of all families, made with torchtitan's own builders.

Queries and keys keep Hugging Face's layout (rotated by halves), so that weights are equal in
torchtitan, transformers and vLLM, and only their names differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from forgedsl.families.base import Dims

Builder = Callable[[Dims], Any]


def decoder_spec(
    dims: Dims, like: Any, block: Any, *, feed_forward: Any = None, adapter: Any = None
) -> Any:
    """Return a copy of torchtitan's ModelSpec `like` with a model of `dims`. `block` is the layer
    class. `feed_forward(dims)` makes the part after attention; default: a gated MLP, which the
    first `dense_first` layers have in any case. `adapter` maps parameter names to those in files;
    default: the names of Llama and Qwen."""
    from torchtitan.models import qwen3
    from torchtitan.models.common import Embedding, Linear

    def has_own(layer: int) -> bool:
        return feed_forward is not None and layer >= dims.dense_first

    init = qwen3._EMBEDDING_SKIP_INIT if dims.tied else qwen3._EMBEDDING_INIT
    model = type(like.model)(
        vocab_size=dims.vocab,
        dim=dims.hidden,
        norm=norm(dims, dims.hidden),
        enable_weight_tying=dims.tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=dims.vocab, embedding_dim=dims.hidden, param_init=init
        ),
        lm_head=Linear.Config(
            in_features=dims.hidden, out_features=dims.vocab, param_init=qwen3._LINEAR_INIT
        ),
        layers=[
            block.Config(
                attention_norm=norm(dims, dims.hidden),
                ffn_norm=norm(dims, dims.hidden),
                attention=_attention(dims, layer),
                **(feed_forward(dims) if has_own(layer) else _mlp(dims)),
            )
            for layer in range(dims.layers)
        ],
    )
    return dataclasses.replace(
        like, flavor="custom", model=model, state_dict_adapter=adapter or adapter_class()
    )


def norm(dims: Dims, width: int) -> Any:
    from torchtitan.models import qwen3
    from torchtitan.models.common import RMSNorm

    return RMSNorm.Config(normalized_shape=width, eps=dims.eps, param_init=qwen3._NORM_INIT)


def _attention(dims: Dims, layer: int) -> Any:
    from torchtitan.models import qwen3
    from torchtitan.models.common.config_utils import get_attention_config, make_gqa_config

    scaling = dims.rope_scaling
    stretched = {} if scaling is None else {
        "scaling": "llama",
        "scaling_factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original,
    }  # fmt: skip
    kind = "none" if not dims.rotates(layer) else "halves" if dims.rotated == 1.0 else "part"
    rope = getattr(rope_classes(), kind)
    config = make_gqa_config(
        dim=dims.hidden,
        n_heads=dims.heads,
        n_kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        wqkv_param_init=qwen3._LINEAR_INIT,
        wo_param_init=qwen3._LINEAR_INIT,
        inner_attention=get_attention_config("flex"),
        fuse_qkv=True,
        rope=rope.Config(
            dim=dims.rotated_dim, max_seq_len=dims.context, theta=dims.rope_theta, **stretched
        ),
        qk_norm=norm(dims, dims.head_dim) if dims.qk_norm else None,
    )
    config.qkv_linear.wqkv.bias = dims.qkv_bias
    return config


def _mlp(dims: Dims) -> dict[str, Any]:
    return {"feed_forward": mlp_config(dims, dims.dense_ffn or dims.ffn)}


def mlp_config(dims: Dims, width: int) -> Any:
    """Return the config of a gated MLP."""
    from torchtitan.models import qwen3
    from torchtitan.models.common.config_utils import make_ffn_config

    return make_ffn_config(
        dim=dims.hidden,
        hidden_dim=width,
        w1_param_init=qwen3._LINEAR_INIT,
        w2w3_param_init=qwen3._LINEAR_INIT,
    )


@cache
def rope_classes() -> SimpleNamespace:
    """Subclasses of torchtitan's RoPE; made once, after torchtitan knows its device."""
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE

    class HalvesRoPE(CosSinRoPE):
        """RoPE by halves, as in Hugging Face weights, also with Llama's context scaling."""

        @dataclass(kw_only=True, slots=True)
        class Config(CosSinRoPE.Config):
            pass

        def _precompute_cache(self) -> Any:
            if self.config.scaling != "llama":
                return super()._precompute_cache()
            turns = ComplexRoPE._precompute_cache(self)
            return torch.cat([turns.real, turns.real, turns.imag, turns.imag], dim=-1)

    class NoRoPE(HalvesRoPE):
        """Leaves queries and keys as they are (NoPE)."""

        @dataclass(kw_only=True, slots=True)
        class Config(HalvesRoPE.Config):
            pass

        def forward(self, query: Any, key: Any, positions: Any = None) -> tuple[Any, Any]:
            return query, key

    class PartRoPE(HalvesRoPE):
        """Rotates the first `dim` dimensions of each head, by halves."""

        @dataclass(kw_only=True, slots=True)
        class Config(HalvesRoPE.Config):
            pass

        @staticmethod
        def apply_rotary_emb(query: Any, key: Any, rope_cache: Any) -> tuple[Any, Any]:
            width = rope_cache.shape[-1] // 2
            turned = HalvesRoPE.apply_rotary_emb(query[..., :width], key[..., :width], rope_cache)
            rest = (query[..., width:], key[..., width:])
            query, key = (torch.cat(parts, -1) for parts in zip(turned, rest, strict=True))
            return query, key

    return SimpleNamespace(halves=HalvesRoPE, none=NoRoPE, part=PartRoPE)


@cache
def adapter_class() -> Any:
    """Subclass of torchtitan's state-dict adapter; made once, after torchtitan knows its device."""
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

    class Adapter(Qwen3StateDictAdapter):
        """Maps torchtitan's names to Hugging Face's and back, including biases of queries, keys and
        values. It maps by name, so it serves every family with these layers."""

        def __init__(self, model_config: Any, hf_assets_path: str | None) -> None:
            super().__init__(model_config, hf_assets_path)
            for letter in "qkv":
                self.from_hf_map[f"model.layers.{{}}.self_attn.{letter}_proj.bias"] = (
                    f"layers.{{}}.attention.qkv_linear.w{letter}.bias"
                )

        def published(self, state: dict[str, Any]) -> dict[str, Any]:
            """Return this rank's shards under the names that generators expect."""
            found: dict[str, Any] = self.to_hf(state)
            return found

        def in_files(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
            """Convert whole weights from the names and shapes of `published` to those of weight
            files."""
            return weights

        def _caculate_indices_from_placements(
            self, dim: int, dim_size: int, dtensor_placements: Any, device_mesh: Any
        ) -> tuple[int, int]:
            """Return the range of experts that this rank has. torchtitan's method does not handle
            replicated experts, so leave out the replicated mesh dimensions."""
            names = zip(device_mesh.mesh_dim_names, dtensor_placements, strict=True)
            split = [(name, each) for name, each in names if not each.is_replicate()]
            if not split:
                return 0, dim_size
            meshes, placements = zip(*split, strict=True)
            found: tuple[int, int] = super()._caculate_indices_from_placements(
                dim, dim_size, placements, device_mesh[meshes]
            )
            return found

    return Adapter
