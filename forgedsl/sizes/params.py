"""Sizes that follow from a model's dimensions: parameters, KV bytes, FLOPs per token.

Dims -> numbers, exact for the decoders of `families`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm

from forgedsl.families.base import Dims
from forgedsl.records import replace

ITEMSIZE = {"f32": 4, "bf16": 2, "f16": 2}
PRECISIONS = {"f32": (4, 8, 4), "bf16_moments": (4, 4, 4), "bf16": (2, 4, 2)}
"""bytes of weight, moments and gradient of a trained parameter, by `optimizer.precision`"""
SLOT_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""ranks of adapters for which vLLM's layers can have room (`max_lora_rank`)"""


def query_width(dims: Dims) -> int:
    """Return the total width of all query heads."""
    return dims.heads * dims.head_dim


def kv_width(dims: Dims) -> int:
    """Return the total width of all key heads, equal to that of the values."""
    return dims.kv_heads * dims.head_dim


def dense_layer(dims: Dims) -> Dims:
    """Return the dimensions of a layer without experts in a model that has both kinds."""
    return replace(dims, ffn=dims.dense_ffn, experts=0, active=0, shared=0, dense_first=0)


def layers_with_experts(dims: Dims) -> int:
    """Return the number of layers that have experts."""
    return dims.layers - dims.dense_first if dims.experts else 0


def parts_of_layer(dims: Dims) -> dict[str, int]:
    """Return the parameters of a layer by part, all experts included; in a model with both kinds of
    layers, of one with experts."""
    query, kv = query_width(dims), kv_width(dims)
    bias = (query + 2 * kv) if dims.qkv_bias else 0
    return {
        "attention": dims.hidden * (2 * query + 2 * kv) + bias,
        "mlp": 3 * dims.hidden * dims.ffn * max(1, dims.experts + dims.shared),
        "router": dims.hidden * dims.experts,
        "norms": 2 * dims.hidden + (2 * dims.head_dim if dims.qk_norm else 0),
    }


def layer_matrices(dims: Dims) -> int:
    """Return the parameters of a layer's matrices, without stacked experts, router, biases and
    norms."""
    attention = dims.hidden * (2 * query_width(dims) + 2 * kv_width(dims))
    return attention + 3 * dims.hidden * dims.ffn * (dims.shared if dims.experts else 1)


def layer_params(dims: Dims) -> int:
    """Parameters of one layer, of one with experts in a model with both kinds."""
    return sum(parts_of_layer(dims).values())


def active_layer_params(dims: Dims) -> int:
    """Return the parameters of a layer that a token uses: of the experts only the chosen ones and
    the shared ones."""
    idle = 3 * dims.hidden * dims.ffn * (dims.experts - dims.active)
    return layer_params(dims) - idle


def over_layers(dims: Dims, size: Callable[[Dims], int], layers: range | None = None) -> int:
    """Return the sum of `size` over layers, by default all, each with the dimensions of its
    kind."""
    some = range(dims.layers) if layers is None else layers
    dense = max(0, min(some.stop, dims.dense_first) - some.start)
    total = (len(some) - dense) * size(dims)
    return total + (dense * size(dense_layer(dims)) if dense else 0)


def vocab_params(dims: Dims) -> int:
    """Return the parameters of the embedding, or of the lm_head."""
    return dims.vocab * dims.hidden


def num_params(dims: Dims) -> int:
    """Return the number of all parameters; tied embeddings count once."""
    ends = vocab_params(dims) * (1 if dims.tied else 2) + dims.hidden
    return over_layers(dims, layer_params) + ends


def weight_bytes(dims: Dims, itemsize: int, *, rounded: bool) -> int:
    """Return the bytes of an engine's weights. If `rounded`, layers are in fp8; embedding and head
    keep their dtype."""
    saved = (itemsize - 1) * over_layers(dims, layer_params) if rounded else 0
    return itemsize * num_params(dims) - saved


def stage_params(dims: Dims, stage: int, pp: int) -> int:
    """Return the parameters of a pipeline stage. The first has the embedding, the last norm and
    head; tied weights are on both."""
    ends = vocab_params(dims) * ((stage == 0) + (stage == pp - 1)) + dims.hidden * (stage == pp - 1)
    return over_layers(dims, layer_params, layers_of_stage(dims, stage, pp)) + ends


def layers_of_stage(dims: Dims, stage: int, pp: int) -> range:
    """Return the layers of a pipeline stage, counted from 0."""
    counts = stage_layers(dims, pp)
    start = sum(counts[:stage])
    return range(start, start + counts[stage])


def adapter_params(dims: Dims, rank: int) -> int:
    """Return the parameters of LoRA adapters of `rank` on every linear layer, except routed
    experts."""
    return rank * over_layers(dims, _adapter_widths)


def _adapter_widths(dims: Dims) -> int:
    """Return the sum of inputs and outputs of the linear layers of a layer that have adapters."""
    query, kv = query_width(dims), kv_width(dims)
    widths = 2 * (dims.hidden + query) + 2 * (dims.hidden + kv)
    ffn = dims.shared * dims.ffn if dims.experts else dims.ffn
    return widths + (3 * (dims.hidden + ffn) if ffn else 0)


def adapter_slot_rank(rank: int) -> int:
    """Return the rank that the layers of a vLLM engine have room for, if an adapter has `rank`; 0
    if vLLM has none that is large enough."""
    return min((size for size in SLOT_RANKS if size >= rank), default=0)


def active_params(dims: Dims) -> int:
    """Return the number of parameters that a token uses."""
    ends = num_params(dims) - over_layers(dims, layer_params)
    return ends + over_layers(dims, active_layer_params)


def largest_unit(dims: Dims) -> int:
    """Return the parameters of the largest unit that FSDP gathers."""
    return max(layer_params(dims), vocab_params(dims))


def stage_layers(dims: Dims, pp: int) -> tuple[int, ...]:
    """Return the number of layers of each pipeline stage, balanced by time. The head on the last
    stage counts as that many layers as take the same time. Requires at least one layer per
    stage."""
    if pp == 1:
        return (dims.layers,)
    head = vocab_params(dims) / active_layer_params(dims)
    choices = range(max(1, dims.layers - pp + 1), 0, -1)
    last = min(choices, key=lambda n: max(-(-(dims.layers - n) // (pp - 1)), n + head))
    each, more = divmod(dims.layers - last, pp - 1)
    # the first stage has the most microbatches in flight
    return (*(each + (stage >= pp - 1 - more) for stage in range(pp - 1)), last)


def kv_bytes(dims: Dims, *, tp: int, pp: int, itemsize: int) -> int:
    """Return the bytes per token in the KV cache of a rank: 2 L H_kv d_head elements."""
    heads = max(1, dims.kv_heads // tp)
    return 2 * -(-dims.layers // pp) * heads * dims.head_dim * itemsize


def forward_flops(dims: Dims, context: int) -> float:
    """Return the FLOPs of a token's forward pass: 2 per weight of a matrix product, and attention
    over half of `context`."""
    return product_flops(dims) + attention_flops(dims, context)


def product_flops(dims: Dims) -> float:
    """Return the FLOPs of a token's forward pass without attention: 2 per weight that it uses."""
    return 2.0 * (over_layers(dims, active_layer_params) + vocab_params(dims))


def attention_flops(dims: Dims, context: float) -> float:
    """Return the FLOPs of attention in a token's forward pass, over half of `context` tokens."""
    return 2.0 * dims.layers * query_width(dims) * context


def repeated(dims: Dims, degrees: Mapping[str, int]) -> int:
    """Return the number of copies of each KV head that context parallelism makes, so that every
    rank gets one."""
    heads = max(1, dims.kv_heads // degrees["tp"])
    return lcm(heads, degrees["cp"]) // heads
