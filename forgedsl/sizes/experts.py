"""Experts of a model: their memory, communication, and degrees of expert parallelism.

    Dims, tokens, ranks -> bytes, seconds, numbers of ranks

With a group of `ep` ranks, each rank has 1/ep of the experts of every layer. Tokens reach the
ranks of their experts and come back, forward and backward. Fewer ranks than experts per
token gather all tokens and reduce-scatter the sums; more ranks send a token once for each of its
experts. Without `ep`, FSDP gathers experts like other weights.
"""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.sizes.devices import LINK
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.sizes.params import (
    dense_layer,
    layer_params,
    layers_with_experts,
    vocab_params,
)

INDEX = 28
"""additional bytes per token and expert: indices, weights, counts (measured)"""
SHARED_LAYER = 1.1e-3
"""seconds that a pass of a layer takes longer if ranks share its experts, beside the bytes: the
host waits for the number of tokens of each expert, and ranks for the one with most tokens. Of a
mixture of 4.24 B parameters on two H200: 0.17 and 0.37 s in 240 forward and backward passes of
layers"""
ROUTED = 12e-6
"""seconds that routing adds to a decode step of a GPU for each layer with experts"""
EXPERT_READ = 1.23
"""times that the grouped products of a decode step need for the weights of experts, compared with a
plain read. Both numbers are those of three mixtures of 3.9 to 4.4 B parameters, on H100 and H200"""


def expert_params(dims: Dims) -> int:
    """Return the parameters of all experts of a layer, without shared ones, which ranks do not
    divide."""
    return 3 * dims.hidden * dims.ffn * dims.experts


def routed_seconds(dims: Dims, itemsize: int, bandwidth: float) -> float:
    """Return the seconds that experts add to a decode step of a GPU with this bandwidth, beside the
    plain read of all weights."""
    if not dims.experts:
        return 0.0
    layers = layers_with_experts(dims)
    read = itemsize * layers * expert_params(dims)
    return layers * ROUTED + (EXPERT_READ - 1) * read / bandwidth


def mlp_bytes(dims: Dims, itemsize: int) -> int:
    """Return the bytes per token that a gated MLP keeps for its backward pass; for experts, those
    of the chosen and the shared ones: each chosen one has its own hidden states, before and after
    its products."""
    if not dims.experts:
        return 4 * dims.ffn * itemsize
    each = 4 * dims.ffn * itemsize + 2 * dims.hidden * itemsize + INDEX
    shared = 4 * dims.shared * dims.ffn * itemsize
    router = 4 * dims.hidden if dims.corrected and itemsize < 4 else 0  # it multiplies in f32
    return dims.active * each + dims.experts * itemsize + shared + router


def compiled_mlp_bytes(dims: Dims, itemsize: int) -> int:
    """Return the bytes per token that a compiled gated MLP keeps for its backward pass: gate, up
    and their product. Chosen experts keep their inputs too, and the router its scores."""
    own = 3 * dims.ffn * itemsize
    if not dims.experts:
        return own
    each = own + dims.hidden * itemsize + INDEX
    router = 4 * dims.hidden if dims.corrected and itemsize < 4 else 0  # it multiplies in f32
    return dims.active * each + dims.shared * own + 12 * dims.experts + router


def gathered(dims: Dims, ep: int) -> int:
    """Return the parameters of the largest layer that FSDP gathers on a rank; of the experts only
    its own."""
    own = layer_params(dims) - expert_params(dims) + expert_params(dims) // ep
    return max(own, layer_params(dense_layer(dims))) if dims.dense_first else own


def largest_tensor(dims: Dims) -> int:
    """Return the parameters of the largest tensor that a generator receives: the first projections
    of all experts of a layer are one tensor."""
    return max(vocab_params(dims), 2 * expert_params(dims) // 3)


def exchanged(dims: Dims, tokens: int, ep: int, itemsize: int) -> int:
    """Return the bytes that a rank sends to the experts of a layer in one pass, or gets back from
    them, if its `tokens` are distributed evenly over experts: (ep - 1) * T * h * b for tokens that
    are gathered, else T * k * h * b * (ep - 1) / ep."""
    one = tokens * dims.hidden * itemsize
    return (ep - 1) * one if gathers_tokens(dims.active, ep) else one * dims.active * (ep - 1) // ep


def gathers_tokens(active: int, ep: int) -> bool:
    """True if each of `ep` ranks gets all tokens of the group, which have `active` experts each.
    Then every rank has equally many: microbatches are padded to the largest."""
    return 1 < ep < active


def gathered_tokens(dims: Dims, tokens: int, ep: int, itemsize: int) -> int:
    """Return the bytes of the tokens of all ranks of a group, ep * T * h * b, which a rank holds
    while it computes a layer; 0 if they are not gathered. `tokens` are those of a rank."""
    return ep * tokens * dims.hidden * itemsize if gathers_tokens(dims.active, ep) else 0


def expert_bytes(mesh: MeshPlan, dims: Dims, tokens: int, size: int, passes: float) -> int:
    """Return the bytes that a rank sends to and gets back from experts of other ranks for a
    microbatch of `tokens`. `passes` is the cost of the microbatch in forward passes: 3 with a
    backward pass, which sends as often as a forward pass does."""
    if not dims.experts or mesh.ep == 1:
        return 0
    rounds = max(1.0, passes - 1)
    trips = 2 * layers_with_experts(dims)
    return round(rounds * trips * exchanged(dims, tokens, mesh.ep, size))


def expert_seconds(mesh: MeshPlan, dims: Dims, tokens: int, size: int, passes: float) -> float:
    """Return the seconds that experts add to a microbatch of `tokens` on a rank, for gathering
    experts or exchanging tokens. `passes` is its cost in forward passes, 3 with a backward pass."""
    if not dims.experts or mesh.device == "cpu" or mesh.shard == 1:
        return 0.0
    ep, spread = mesh.ep, mesh.shard // mesh.ep
    weights = expert_params(dims) // ep * size * (spread - 1) // spread
    trips = exchanged(dims, tokens, ep, size)
    rounds = max(1.0, passes - 1)  # a backward pass communicates as often as a forward pass
    waits = SHARED_LAYER if ep > 1 else 0.0
    return layers_with_experts(dims) * rounds * (waits + (2 * trips + weights) / LINK)


def fitting(dims: Dims, shard: int) -> list[int]:
    """The numbers of ranks that may share the experts of a model, of `shard` that share weights."""
    return [n for n in range(1, shard + 1) if shard % n == 0 and divides(dims, shard, n)]


def divides(dims: Dims, shard: int, ep: int) -> bool:
    """True if the experts divide evenly among the ranks."""
    if shard <= dims.experts:
        return dims.experts % shard == 0
    return dims.experts % ep == 0 and dims.ffn % (shard // ep) == 0
