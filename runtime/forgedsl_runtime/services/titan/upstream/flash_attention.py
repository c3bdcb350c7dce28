"""Causal attention over packed rows with flash attention 4, on Hopper GPUs.

torch's `varlen_attn` is flash attention 2 on every GPU. vLLM ships newer kernels, with a backward
pass, that use Hopper's asynchronous copies and products (arXiv 2407.08608). They also add up the
gradients of key heads that several query heads share. This module makes two operators of them that
torch can compile around. The kernels are compiled at their first call, or before it by
`compile_ahead`, and kept on disk.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from forgedsl.syntax import cache as compiled
from forgedsl_runtime.packing import FLAT_STEP

KERNELS = "vllm.vllm_flash_attn.cute"
"""package of the kernels; only vLLM's build for CUDA has it"""
HOPPER = (9, 0)
"""compute capability of the GPUs on which these kernels were measured"""
DTYPES = (torch.bfloat16, torch.float16)
MOST_WIDTH = 256
"""largest width of a head"""
FEW, PER_ROW = 2, 4
"""segments of a microbatch that kernels are compiled for: few, and PER_ROW for each `seq_len`
tokens"""
CACHED, CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"
"""variables of the kernels: "1" if they are kept on disk, and the folder"""


def takes(dtype: torch.dtype, width: int) -> bool:
    """Return whether these kernels take queries of this dtype, with heads of this width."""
    return dtype in DTYPES and width <= MOST_WIDTH and width % 8 == 0


def installed() -> bool:
    """Return whether this rank's GPU is a Hopper and the kernels are installed."""
    return torch.cuda.get_device_capability() == HOPPER and importable()


def importable() -> bool:
    """Return whether the kernels are installed."""
    return all(find_spec(name) for name in ("cutlass", "quack", "vllm", KERNELS))


@cache
def kernels() -> Any:
    """Import the kernels. It takes 3 to 7 s, so a trainer does it while engines start."""
    os.environ.setdefault(CACHED, "1")
    os.environ.setdefault(CACHE, str(compiled.folder() / "flash_attention"))
    # its compiler says this of each kernel, and there is nothing to do about it
    warnings.filterwarnings("ignore", message="Argument aux_data .* cannot be converted")
    return import_module(f"{KERNELS}.interface")


def compile_ahead(
    heads: int, key_heads: int, width: int, dtype: torch.dtype, *, seq_len: int, rows: int
) -> None:
    """Compile the kernels for `heads` query heads and `key_heads` key heads of `width`, forward and
    backward, for microbatches of `rows` * `seq_len` tokens. Nothing runs, and no memory of the GPU
    is allocated: under FakeTensorMode the kernels' functions only compile.

    On Hopper GPUs a kernel depends on heads / key_heads, width, dtype and whether torch has to be
    deterministic. Of the data it depends on these, and on nothing else:

    - whether there are more than 256 segments (all kernels). This happens only to short samples in
      long rows. So there is a call with few segments, and one with PER_ROW per row: the same
      kernels unless `rows` > 64.
    - whether `longest` times heads / key_heads is at most one tile (forward: 128 queries, 192 for
      a width below 97), and whether `longest` is at most one block of queries or of keys (backward:
      64 to 128). Samples usually are longer. The probe of a publication is not; it is as long as
      the padding of a row, and has no backward pass. If each key head has one query head, it has
      a kernel of its own.

    A microbatch of short samples alone compiles its kernels at its first call, as before.
    """
    kernels()
    longest = 1 << (seq_len - 1).bit_length()
    with _one_at_a_time(), FakeTensorMode():
        for segments in (FEW, rows * PER_ROW):
            q, k, v, bounds = _made_up(heads, key_heads, width, dtype, segments)
            out, log_sum = _attend(q, k, v, bounds, longest, None)
            _differentiate(torch.empty_like(out), q, k, v, out, log_sum, bounds, longest, None)
        q, k, v, bounds = _made_up(heads, key_heads, width, dtype, FEW)
        _attend(q, k, v, bounds, FLAT_STEP, None)


def _made_up(
    heads: int, key_heads: int, width: int, dtype: torch.dtype, segments: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and bounds of segments; no kernel depends on the number of
    tokens."""
    tokens = segments * FLAT_STEP
    q = torch.empty(tokens, heads, width, dtype=dtype, device="cuda")
    k, v = (torch.empty(tokens, key_heads, width, dtype=dtype, device="cuda") for _ in range(2))
    return q, k, v, torch.empty(segments + 1, dtype=torch.int32, device="cuda")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one rank of a host compile at a time: the others then read its kernels from disk."""
    if os.environ.get(CACHED) != "1":
        yield
        return
    folder = Path(os.environ[CACHE])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ahead.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        yield


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    out, log_sum, *_ = kernels()._flash_attn_fwd(
        q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=longest,
        max_seqlen_k=longest, softmax_scale=scale, causal=True, return_lse=True,
    )  # fmt: skip
    return out.contiguous(), log_sum.contiguous()


def _differentiate(
    push: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sum: Tensor, bounds: Tensor,
    longest: int, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = kernels()._flash_attn_bwd(
        q, k, v, out, push, log_sum, softmax_scale=scale, causal=True, cu_seqlens_q=bounds,
        cu_seqlens_k=bounds, max_seqlen_q=longest, max_seqlen_k=longest,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@torch.library.custom_op("forgedsl::packed_attention", mutates_args=(), device_types="cuda")
def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return causal attention within segments of one row, and the log-sum-exp of its scores.

    q [T, heads, width], k, v [T, key heads, width], 16-bit; bounds: int32 [D + 1], starts of
    segments, then T; longest: upper bound of their lengths. Returns [T, heads, width] in the dtype
    of q and f32 [heads, T].
    """
    return _attend(q, k, v, bounds, longest, scale)


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
    return _differentiate(push, q, k, v, out, log_sum, bounds, longest, scale)


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
