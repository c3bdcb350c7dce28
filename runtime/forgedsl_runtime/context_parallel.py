"""Context parallelism: give each rank of a group its part of every row of a microbatch.

    microbatch --shard_microbatch--> this rank's columns of every row, and the tokens whose loss it
                                     computes

Each of n ranks holds L / n tokens of every row, in order. A token-level loss is computed on the
rank that holds the hidden states. A sequence-level loss needs each sequence on one rank: sequences
are assigned to ranks, and a `RowExchange` sends the hidden states of their scored tokens there,
before the large projection to the vocabulary. Shapes as in `packing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single

from forgedsl_runtime.packing import Microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """This rank's place in its context-parallel group (ranks that share rows)."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None


def shard_microbatch(
    micro: Microbatch, context: Context, *, whole: bool = False, step: int = 1
) -> Microbatch:
    """Cut this rank's columns out of a microbatch; the row length must divide by the number of
    ranks. With `whole`, each sequence's loss is computed on one rank, and `step` consecutive
    sequences (such as the two of a pair) stay together."""
    if context.size == 1:
        return micro
    length = micro.tokens.shape[1]
    width = length // context.size
    column = micro.index % length
    holder = column // width
    local = micro.index // length * width + column % width
    sent = holder == context.rank
    kept, index, exchange = sent, local[sent], None
    if whole:
        counts = torch.bincount(micro.seq_id, minlength=len(micro.members)).tolist()
        owner = torch.tensor(_assign_sequences(counts, context.size, step), dtype=torch.int64)[
            micro.seq_id
        ]
        to = owner[sent]
        kept = owner == context.rank
        index = index[to.argsort(stable=True)]
        exchange = RowExchange.of(to, holder[kept], context)
    mine = slice(context.rank * width, (context.rank + 1) * width)
    return replace(
        micro,
        tokens=micro.tokens[:, mine].contiguous(),
        positions=micro.positions[:, mine].contiguous(),
        index=index,
        labels=micro.labels[kept],
        seq_id=micro.seq_id[kept],
        inputs={n: v[kept] if n in micro.of_tokens else v for n, v in micro.inputs.items()},
        num_tokens=micro.num_tokens if context.rank == 0 else 0,
        routes=None if micro.routes is None else micro.routes[:, mine].contiguous(),
        exchange=exchange,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExchange:
    """All-to-all exchange that sends rows, sorted by destination, to the ranks that compute their
    loss."""

    sends: list[int]
    receives: list[int]
    order: Tensor  # int64 [N], for each row of the microbatch its index among the received rows
    group: dist.ProcessGroup

    @classmethod
    def of(cls, to: Tensor, came: Tensor, context: Context) -> RowExchange:
        """Make an exchange from the destination ranks of local rows and the source ranks of
        incoming rows."""
        assert context.group is not None
        return cls(
            sends=torch.bincount(to, minlength=context.size).tolist(),
            receives=torch.bincount(came, minlength=context.size).tolist(),
            order=came.argsort(stable=True).argsort(),
            group=context.group,
        )

    def __call__(self, rows: Tensor) -> Tensor:
        """Exchange rows: local rows [n, H] -> rows of this rank's sequences [N, H];
        differentiable."""
        return all_to_all_single(rows, self.receives, self.sends, self.group)[
            self.order.to(rows.device)
        ]


def _assign_sequences(counts: Sequence[int], ranks: int, step: int) -> list[int]:
    """Assign each sequence to a rank: longest first, to the rank with the fewest tokens."""
    filled = [0] * ranks
    owner = [0] * len(counts)
    sizes = {i: sum(counts[i : i + step]) for i in range(0, len(counts), step)}
    for i in sorted(sizes, key=lambda i: -sizes[i]):
        rank = min(range(ranks), key=filled.__getitem__)
        filled[rank] += sizes[i]
        owner[i : i + step] = [rank] * len(owner[i : i + step])
    return owner
