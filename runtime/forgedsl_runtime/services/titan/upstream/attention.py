"""Attention among the tokens of packed rows, as modules that torchtitan's configs accept.

On CPUs rows are short and attention uses a boolean mask. On GPUs all sequences are in one row, and
the kernels get the bounds of the sequences. Import nothing of torchtitan at module level: it reads
its device when it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forgedsl_runtime.services.titan.upstream import flash_attention

CAUSAL = 1
"""value with which the memory-efficient kernel selects a causal mask aligned to the upper left
corner"""


class Segments(NamedTuple):
    """Segments of one long row; tokens attend to earlier tokens of their segment."""

    bounds: Tensor
    """int32 [D + 1]: starts of segments, then the row's length"""
    longest: int
    """upper bound of the length of a segment"""


def masked_attention() -> type:
    """Return the attention class for CPUs."""
    from torchtitan.protocols.module import Module

    class MaskedAttention(Module):
        """Scaled dot-product attention under a boolean [R, 1, L, L] mask (CPU)."""

        @dataclass(kw_only=True, slots=True)
        class Config(Module.Config):
            pass

        def __init__(self, config: Config) -> None:
            super().__init__()

        def forward(  # the TP plan shards positional inputs; the mask is keyword-only
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

    return MaskedAttention


def _in_f32(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float | None) -> Tensor:
    """Return attention in f32 by the memory-efficient kernel, which has no shared key heads."""
    bounds, longest = segments
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v)) if shared > 1 else (k, v)
    attended, *_ = torch.ops.aten._efficient_attention_forward(
        q[None], k[None], v[None], None, bounds, bounds, longest, longest,
        0.0, CAUSAL, True, scale=scale,
    )  # fmt: skip
    return attended  # type: ignore[no-any-return]


def packed_attention() -> type:
    """Return the attention class for GPUs."""
    from torch.nn.attention.varlen import varlen_attn
    from torchtitan.protocols.module import Module

    newest = flash_attention.installed()
    if newest:  # here, since modules are built with PyTorch's device set to meta
        flash_attention.kernels()

    class PackedAttention(Module):
        """Causal attention within `Segments` of one row, without an L x L mask (GPU). 16-bit
        dtypes use flash attention, on Hopper version 4; f32 uses the memory-efficient kernel.
        torchtitan's own module would need a build of flash attention that torch does not
        include."""

        @dataclass(kw_only=True, slots=True)
        class Config(Module.Config):
            pass

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.newest = newest

        def forward(
            self,
            q_BLNH: Tensor,
            k_BLNH: Tensor,
            v_BLNH: Tensor,
            *,
            attention_masks: Segments,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> Tensor:
            q, k, v = (x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH))
            bounds, longest = attention_masks
            if q.dtype == torch.float32:
                return _in_f32(q, k, v, attention_masks, scale).view(q_BLNH.shape)
            if self.newest and flash_attention.takes(q.dtype, q.shape[-1]):
                attended, _ = flash_attention.packed_attention(q, k, v, bounds, longest, scale)
                return attended.view(q_BLNH.shape)  # type: ignore[no-any-return]
            out = varlen_attn(
                q, k, v, bounds, bounds, longest, longest,
                scale=scale, window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1],
            )  # fmt: skip
            assert isinstance(out, Tensor)  # not a tuple with the log-sum-exp
            return out.view(q_BLNH.shape)

    return PackedAttention
