"""Causal attention over packed rows with flash attention 4, on Hopper GPUs.

torch's `varlen_attn` is flash attention 2 on every GPU. vLLM ships newer kernels, with a backward
pass, that use Hopper's asynchronous copies and products (arXiv 2407.08608). They also add up the
gradients of key heads that several query heads share. This module makes two operators of them that
torch can compile around. The kernels are compiled at their first call and kept on disk.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from forgedsl.syntax import cache as compiled

KERNELS = "vllm.vllm_flash_attn.cute"
"""package of the kernels; only vLLM's build for CUDA has it"""
HOPPER = (9, 0)
"""compute capability of the GPUs on which these kernels were measured"""
DTYPES = (torch.bfloat16, torch.float16)
MOST_WIDTH = 256
"""largest width of a head"""


def takes(dtype: torch.dtype, width: int) -> bool:
    """Return whether these kernels take queries of this dtype, with heads of this width."""
    return dtype in DTYPES and width <= MOST_WIDTH and width % 8 == 0


def installed() -> bool:
    """Return whether this rank's GPU is a Hopper and the kernels are installed."""
    if torch.cuda.get_device_capability() != HOPPER:
        return False
    return all(find_spec(name) for name in ("cutlass", "quack", "vllm", KERNELS))


@cache
def kernels() -> Any:
    """Import the kernels. It takes 3 to 7 s, so a trainer does it while engines start."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    folder = compiled.folder() / "flash_attention"
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder))
    # its compiler says this of each kernel, and there is nothing to do about it
    warnings.filterwarnings("ignore", message="Argument aux_data .* cannot be converted")
    return import_module(f"{KERNELS}.interface")


@torch.library.custom_op("forgedsl::packed_attention", mutates_args=(), device_types="cuda")
def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return causal attention within segments of one row, and the log-sum-exp of its scores.

    q [T, heads, width], k, v [T, key heads, width], 16-bit; bounds: int32 [D + 1], starts of
    segments, then T; longest: upper bound of their lengths. Returns [T, heads, width] in the dtype
    of q and f32 [heads, T].
    """
    out, log_sum, *_ = kernels()._flash_attn_fwd(
        q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=longest,
        max_seqlen_k=longest, softmax_scale=scale, causal=True, return_lse=True,
    )  # fmt: skip
    return out.contiguous(), log_sum.contiguous()


@packed_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op(
    "forgedsl::packed_attention_backward", mutates_args=(), device_types="cuda"
)
def _backward(
    push: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, bounds: Tensor,
    longest: int, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = kernels()._flash_attn_bwd(
        q, k, v, out, push, log_sum, softmax_scale=scale, causal=True, cu_seqlens_q=bounds,
        cu_seqlens_k=bounds, max_seqlen_q=longest, max_seqlen_k=longest,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@_backward.register_fake
def _(
    push: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, bounds: Tensor,
    longest: int, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, longest, scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.longest, ctx.scale = longest, scale


def _gradients(ctx: Any, push: Tensor, push_log_sum: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, bounds, out, log_sum = ctx.saved_tensors
    grads = _backward(push, q, k, v, out, log_sum, bounds, ctx.longest, ctx.scale)
    return (*grads, None, None, None)


packed_attention.register_autograd(_gradients, setup_context=_save)
