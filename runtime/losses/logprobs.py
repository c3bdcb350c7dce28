"""Log-probs of given tokens from hidden states and lm_head: the reference, the start of a step.

In bfloat16 on Hopper one product whose logits stay on chip, elsewhere chunks of logits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

from forgedsl.runtime.losses import head as heads
from forgedsl.runtime.losses.batch import Rows, slices
from forgedsl.runtime.losses.checks import check_linear
from forgedsl.runtime.losses.kernels import scale
from forgedsl.runtime.losses.parallel import Shard
from forgedsl.runtime.losses.product import Product, fits

ROWS_AT_A_TIME = 16384
"""Sums of the softmax take 8 bytes a row for each 256 logits."""
TILE = 16
"""On a CPU the rows of a product that are left over are added up in another order: there are none,
so that a row has the same bits whatever rows are beside it."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    *,
    chunk_rows: int | None = None,
    group: ProcessGroup | None = None,
    vocabulary: int | None = None,
) -> Tensor:
    """The log-prob of each label, `[N]` in float32 (float64 from such), without gradient; logits
    are never kept.

    `group` and `vocabulary` as in `LossFunction.linear`.
    """
    check_linear(hidden, weight, labels)
    count = len(labels)
    hidden, labels = whole_tiles(hidden), whole_tiles(labels)
    wide = torch.float64 in (hidden.dtype, weight.dtype)
    dtype = torch.float64 if wide else torch.float32
    rows = heads.every_row(labels, dtype)
    shard = None if group is None else Shard.of(group, weight.shape[0], vocabulary)
    if shard is not None:
        rows = shard.local(rows)
        chunk_rows = chunk_rows or heads.rows_of_chunk(labels.device, shard.largest)
    if shard is None and hidden.is_cuda and fits(hidden, weight):
        return on_chip(hidden.detach(), weight.detach(), rows, temperature)
    if not hidden.is_cuda:
        chunk = chunk_rows or heads.rows_of_chunk(labels.device, weight.shape[0])
        chunk_rows = -(-chunk // TILE) * TILE
    source = heads.LinearHead(hidden.detach(), weight.detach(), rows, dtype, chunk_rows)
    found = hidden.new_empty(labels.shape, dtype=dtype)
    with torch.no_grad():
        for part in source.chunks():
            z, places = source.logits(part) / temperature, rows.labels[part]
            if shard is None:
                chosen = z.gather(1, places.unsqueeze(1)).squeeze(1)
                found[part] = chosen - torch.logsumexp(z, dim=1)
            else:
                _, mine = heads.Softmax.of(z, places.clamp(min=0), mean_logprob=False)
                found[part] = shard.combine(mine, places >= 0, rows.valid[part])["logprob"]
    return found[:count]


def whole_tiles(rows: Tensor) -> Tensor:
    """`[N, ...]` -> on a CPU with zeros behind, up to a multiple of `TILE` rows."""
    rest = 0 if rows.is_cuda else -len(rows) % TILE
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, rest)) if rest else rows


def on_chip(hidden: Tensor, weight: Tensor, rows: Rows, temperature: float) -> Tensor:
    """The same by the product of `product`, which leaves nothing but sums."""
    import triton.language as tl

    names, dtype = ("logprob", "entropy", "logsumexp"), rows.dtype
    found = torch.empty((len(names), rows.num_kept), dtype=dtype, device=hidden.device)
    arguments = {f"{name}_ptr": value for name, value in zip(names, found, strict=True)}
    arguments["scale"] = scale(temperature, weight.shape[0], dtype, hidden.device)
    more = {"ACC": tl.float64 if dtype == torch.float64 else tl.float32}
    product = Product(
        rows, {**arguments, **more}, hidden, weight, chunk=ROWS_AT_A_TIME, statistics=names
    )
    for part in slices(rows.num_kept, ROWS_AT_A_TIME):
        product.statistics(part)
    return found[0]
