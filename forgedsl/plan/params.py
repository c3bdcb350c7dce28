"""Sizes that follow from a model's dimensions: parameters, KV bytes, FLOPs per token.

Dims -> numbers, exact for the decoder layouts of `archs` (grouped-query attention, gated MLP)
"""

from __future__ import annotations

from forgedsl.plan.archs import Dims

ITEMSIZE = {"f32": 4, "bf16": 2, "f16": 2}


def query_width(dims: Dims) -> int:
    """Width of all query heads together."""
    return dims.heads * dims.head_dim


def kv_width(dims: Dims) -> int:
    """Width of all key heads together; the values have the same."""
    return dims.kv_heads * dims.head_dim


def layer_params(dims: Dims) -> int:
    """Parameters of one layer: projections, gated MLP (per expert), norms."""
    attention = dims.hidden * (2 * query_width(dims) + 2 * kv_width(dims))
    mlp = 3 * dims.hidden * dims.ffn * max(1, dims.experts)
    return attention + mlp + 2 * dims.hidden + 2 * dims.head_dim


def vocab_params(dims: Dims) -> int:
    """Parameters of the embedding, or of the lm_head."""
    return dims.vocab * dims.hidden


def num_params(dims: Dims) -> int:
    """All parameters; tied embeddings count once."""
    ends = vocab_params(dims) * (1 if dims.tied else 2) + dims.hidden
    return dims.layers * layer_params(dims) + ends


def largest_unit(dims: Dims) -> int:
    """Parameters of the largest part that FSDP gathers as a whole."""
    return max(layer_params(dims), vocab_params(dims))


def kv_bytes(dims: Dims, *, tp: int, pp: int, itemsize: int) -> int:
    """Bytes that one token takes in the KV cache of one rank: 2 L H_kv d_head."""
    heads = max(1, dims.kv_heads // tp)
    return 2 * -(-dims.layers // pp) * heads * dims.head_dim * itemsize


def forward_flops(dims: Dims, context: int) -> float:
    """FLOPs of one token forward: 2 per weight of a product, and attention over half `context`."""
    weights = dims.layers * layer_params(dims) + vocab_params(dims)
    return 2.0 * weights + 2.0 * dims.layers * query_width(dims) * context
