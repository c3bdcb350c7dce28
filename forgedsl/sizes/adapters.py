"""Time that a LoRA adapter adds to a decode step of an engine that keeps it beside its base.

    Dims, rank, completions at once, device -> seconds

Each linear layer makes two more products, with A and with B. On a GPU they are so small that their
launches take the time. On a CPU vLLM copies A and B for each token.
"""

from __future__ import annotations

from forgedsl.families.base import Dims
from forgedsl.sizes.params import adapter_params

GPU_LAYER = 44e-6
"""seconds per layer of the model: 0.6B, rank 32, 128 completions at once, on an H200"""
CPU_LAYER = 1.7e-3
"""seconds per layer of the model on one core: the shipped model, 8 to 128 completions at once"""
CPU_COPY = 0.8e-9
"""seconds per parameter of the adapter and token, on the same core; ranks 4 to 32"""


def added_seconds(dims: Dims, rank: int, width: int, device: str) -> float:
    """Return the seconds that an adapter of this rank adds to a decode step of `width` tokens. Rank
    0 is the base alone: 0 s."""
    if not rank:
        return 0.0
    if device == "gpu":
        return dims.layers * GPU_LAYER
    return dims.layers * CPU_LAYER + width * adapter_params(dims, rank) * CPU_COPY
