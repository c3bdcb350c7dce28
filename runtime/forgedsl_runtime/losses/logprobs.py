"""Log-probs of given tokens from hidden states and lm_head, for references and before a step.

In bfloat16 on Hopper the logits stay on chip; elsewhere they are computed in chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

from forgedsl_runtime.losses import head as heads
from forgedsl_runtime.losses.batch import Rows, slices
from forgedsl_runtime.losses.checks import check_linear
from forgedsl_runtime.losses.kernels import scale
from forgedsl_runtime.losses.parallel import Shard
from forgedsl_runtime.losses.product import Product, fits_on_chip

ROWS_AT_A_TIME = 16384
"""Rows per launch. For each row, the sums of the softmax take 8 bytes per 256 logits."""
TILE = 16
"""On a CPU a product sums its remainder rows in another order. Rows are padded to this multiple, so
results of a row are bitwise independent of the other rows."""


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
    """Return the log-prob of each label, `[N]` in float32 (float64 for float64 inputs), without
    gradient. Logits are never kept. `group` and `vocabulary` are as in `LossFunction.linear`."""
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
    if shard is None and hidden.is_cuda and fits_on_chip(hidden, weight):
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
    """Pad `[N, ...]` on a CPU with zero rows to a multiple of `TILE` rows."""
    rest = 0 if rows.is_cuda else -len(rows) % TILE
    return pad(rows, (0, 0) * (rows.dim() - 1) + (0, rest)) if rest else rows


def on_chip(hidden: Tensor, weight: Tensor, rows: Rows, temperature: float) -> Tensor:
    """Compute log-probs with the on-chip product, which stores only sums."""
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
