"""Context parallelism for torchtitan's decoders: ranks split rows; in attention they split heads.

    q, k, v [R, L / n, heads] --all-to-all--> [R, L, heads / n] --attention--> back

DeepSpeed-Ulysses (arXiv 2309.14509): everything but attention works per token, and attention works
per head, so attention runs unchanged on whole packed rows. torchtitan's own context parallelism
supports flex attention, which has no CPU kernel, and causal SDPA, which cannot separate packed
sequences. It does not support our variable-length attention on GPUs. Part of the adapter in
`model.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.context_parallel import Context


def share_rows(module: nn.Module, dims: Any, degrees: spec.TitanParallel) -> Context:
    """Make attention layers exchange tokens for heads; call before the model is parallelized.

    Raises:
        LaunchError: heads cannot be split evenly. (The plan checks this if it knows the sizes of
        the model.)
    """
    if degrees.cp == 1:
        return Context()
    context = _neighbours(dims, degrees.cp)
    layers: Any = module.layers
    for layer in layers.values():
        here = layer.attention
        heads, kv_heads = here.n_heads // degrees.tp, here.n_kv_heads // degrees.tp
        if heads % math.lcm(kv_heads, degrees.cp):
            raise LaunchError(
                f"parallel.cp = {degrees.cp} ranks cannot share {heads} heads with {kv_heads} kv "
                "heads evenly"
            )
        inner = here.inner_attention
        inner.forward = _exchanging(inner.forward, context.size, context.group)
    return context


def _neighbours(dims: Any, size: int) -> Context:
    """Return the ranks that share rows, within torchtitan's data-parallel mesh."""
    batch = dims.get_mesh("batch")
    mesh = batch._unflatten(0, (batch.size() // size, size), ("samples", "context"))["context"]
    return Context(rank=mesh.get_local_rank(), size=size, group=mesh.get_group())


def _exchanging(attend: Callable[..., Tensor], size: int, group: Any) -> Callable[..., Tensor]:
    name: Any = group.group_name

    def swapped(parts: Tensor) -> Tensor:
        """Send part i of [n, ...] to rank i."""
        return all_to_all_single(parts.contiguous(), None, None, name)

    def forward(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        rows, width, heads, depth = q.shape
        times = math.lcm(k.shape[2], size) // k.shape[2]
        if times > 1:  # fewer key heads than ranks: repeat them
            k, v = (x.repeat_interleave(times, 2) for x in (k, v))
        own, kv = heads // size, k.shape[2] // size
        parts = torch.cat([x.reshape(rows, width, size, -1, depth) for x in (q, k, v)], 3)
        whole = swapped(parts.permute(2, 0, 1, 3, 4)).transpose(0, 1).flatten(1, 2)
        q, k, v = torch.split(whole, [own, kv, kv], 2)
        options["enable_gqa"] = own > kv
        out = attend(q, k, v, **options).reshape(rows, size, width, own, depth)
        return swapped(out.transpose(0, 1)).permute(1, 2, 0, 3, 4).flatten(2, 3)

    return forward
