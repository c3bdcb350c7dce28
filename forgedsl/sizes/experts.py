"""Experts of a model: what they keep, what travels to them, and how ranks may share them.

    Dims, tokens, ranks -> bytes, seconds, numbers of ranks

With `ep` ranks in a group, each has so many of the experts of every layer, and a token goes to the
ranks of those that it chose and comes back, in the forward pass and in the backward pass. Without,
the experts of a layer are gathered as all weights are.
"""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.sizes.devices import LINK, REDUCE
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.sizes.params import layer_params, vocab_params

INDEX = 28
"""bytes of a token's row at an expert besides its numbers: indices, weights, counts (measured)"""


def expert_params(dims: Dims) -> int:
    """Parameters of all experts of a layer."""
    return 3 * dims.hidden * dims.ffn * dims.experts


def mlp_bytes(dims: Dims, itemsize: int) -> int:
    """Bytes that a token keeps of a gated MLP for its backward pass, or of the experts that it
    chose: each has its own row of hidden states, in f32 too where they are weighed and added."""
    if not dims.experts:
        return 4 * dims.ffn * itemsize
    each = 4 * dims.ffn * itemsize + dims.hidden * (itemsize + 4) + INDEX
    return dims.active * each + dims.experts * itemsize


def gathered(dims: Dims, ep: int) -> int:
    """Parameters of a layer that FSDP gathers as a whole on a rank: of experts its own."""
    return layer_params(dims) - expert_params(dims) + expert_params(dims) // ep


def largest_tensor(dims: Dims) -> int:
    """Parameters of the largest tensor that a generator gets: first halves of a layer's experts go
    together."""
    return max(vocab_params(dims), 2 * expert_params(dims) // 3)


def exchanged(dims: Dims, tokens: int, ep: int, itemsize: int) -> int:
    """Return the bytes that a rank sends to the experts of a layer in one pass, or gets back from
    them, if each expert gets as many of its `tokens` as the others."""
    return tokens * dims.active * dims.hidden * itemsize * (ep - 1) // ep


def expert_bytes(mesh: MeshPlan, dims: Dims, tokens: int, size: int, passes: float) -> int:
    """Return the bytes that a rank sends to and gets back from experts of other ranks for a
    microbatch of `tokens`. `passes` is the cost of the microbatch in forward passes: 3 with a
    backward pass, which sends as often as a forward pass does."""
    if not dims.experts or mesh.ep == 1:
        return 0
    rounds = max(1.0, passes - 1)
    return round(rounds * 2 * dims.layers * exchanged(dims, tokens, mesh.ep, size))


def expert_seconds(mesh: MeshPlan, dims: Dims, tokens: int, size: int, passes: float) -> float:
    """Seconds that experts add to a microbatch of `tokens` on a rank: `passes` is what it takes of
    forward passes, 3 with a backward one. Experts are gathered for it, or tokens travel."""
    if not dims.experts or mesh.device == "cpu" or mesh.shard == 1:
        return 0.0
    ep, spread = mesh.ep, mesh.shard // mesh.ep
    weights = expert_params(dims) // ep * size * (spread - 1) // spread
    trips = exchanged(dims, tokens, ep, size)
    rounds = max(1.0, passes - 1)  # a backward pass sends as often as a forward one
    waits = 2 * REDUCE if ep > 1 else 0.0
    return dims.layers * rounds * (waits + (2 * trips + weights) / LINK)


def fitting(dims: Dims, shard: int) -> list[int]:
    """The numbers of ranks that may share the experts of a model, of `shard` that share weights."""
    return [n for n in range(1, shard + 1) if shard % n == 0 and divides(dims, shard, n)]


def divides(dims: Dims, shard: int, ep: int) -> bool:
    """True if every rank gets as much of the experts as the others."""
    if shard <= dims.experts:
        return dims.experts % shard == 0
    return dims.experts % ep == 0 and dims.ffn % (shard // ep) == 0
