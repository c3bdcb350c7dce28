"""Packed microbatches cut among the ranks that share their rows (context parallelism).

    microbatch --cut--> this rank's columns of every row, and the tokens whose loss it computes

Each of n ranks holds L / n tokens of every row, in order. A loss that looks at single tokens is
computed where their hidden states are. One that looks at whole sequences needs all of a sequence on
one rank: sequences are dealt out, and a `Route` takes the hidden states of their scored tokens
there, before the vocabulary makes them large. Shapes as in `packing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single

from forgedsl.runtime.packing import Microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """This rank among those that share rows."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None


def cut(micro: Microbatch, context: Context, *, whole: bool = False, step: int = 1) -> Microbatch:
    """This rank's part of a microbatch whose rows divide evenly; with `whole`, sequences stay in
    one piece for the loss, and `step` of them together."""
    if context.size == 1:
        return micro
    length = micro.tokens.shape[1]
    width = length // context.size
    column = micro.index % length
    holder = column // width
    local = micro.index // length * width + column % width
    sent = holder == context.rank
    kept, index, route = sent, local[sent], None
    if whole:
        counts = torch.bincount(micro.seq_id, minlength=len(micro.members)).tolist()
        owner = torch.tensor(_dealt(counts, context.size, step), dtype=torch.int64)[micro.seq_id]
        to = owner[sent]
        kept = owner == context.rank
        index = index[to.argsort(stable=True)]
        route = Route.of(to, holder[kept], context)
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
        route=route,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How rows that are sorted by destination come to the rank that computes their loss."""

    sends: list[int]
    receives: list[int]
    order: Tensor  # int64 [N], where the rows of the microbatch are among those that arrive
    group: dist.ProcessGroup

    @classmethod
    def of(cls, to: Tensor, came: Tensor, context: Context) -> Route:
        """From the destinations of the rows here, and the origins of those that shall be here."""
        assert context.group is not None
        return cls(
            sends=torch.bincount(to, minlength=context.size).tolist(),
            receives=torch.bincount(came, minlength=context.size).tolist(),
            order=came.argsort(stable=True).argsort(),
            group=context.group,
        )

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [n, H] of all ranks -> those of this one's sequences [N, H], with their gradient."""
        return all_to_all_single(rows, self.receives, self.sends, self.group)[
            self.order.to(rows.device)
        ]


def _dealt(counts: Sequence[int], ranks: int, step: int) -> list[int]:
    """The rank of each sequence: the longest first, to the one with the fewest tokens."""
    filled = [0] * ranks
    owner = [0] * len(counts)
    sizes = {i: sum(counts[i : i + step]) for i in range(0, len(counts), step)}
    for i in sorted(sizes, key=lambda i: -sizes[i]):
        rank = min(range(ranks), key=filled.__getitem__)
        filled[rank] += sizes[i]
        owner[i : i + step] = [rank] * len(owner[i : i + step])
    return owner
