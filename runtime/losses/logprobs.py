"""Log-probs of given tokens from hidden states and lm_head: the reference, the start of a step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from forgedsl.runtime.losses import head as heads
from forgedsl.runtime.losses.checks import check_linear
from forgedsl.runtime.losses.parallel import Shard


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
    """The log-prob of each label, `[N]`, without gradient; logits are never kept.

    `group` and `vocabulary` as in `LossFunction.linear`.
    """
    check_linear(hidden, weight, labels)
    wide = torch.float64 in (hidden.dtype, weight.dtype)
    dtype = torch.float64 if wide else torch.float32
    rows = heads.every_row(labels)
    shard = None if group is None else Shard.of(group, weight.shape[0], vocabulary)
    if shard is not None:
        rows = shard.local(rows)
        chunk_rows = chunk_rows or heads.rows_of_chunk(labels.device, shard.largest)
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
    return found
