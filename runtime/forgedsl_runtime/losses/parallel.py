"""Vocabulary-parallel losses: each rank of a group holds a part of the logits or of the lm_head.

    statistics of a shard  ->  Shard.combine  ->  those of the whole row  ->  gradient of a shard

Ranks exchange four or five numbers per row, never logits. The combined statistics, and so the loss
and its metrics, are bitwise equal on all ranks, because all sum in rank order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from forgedsl_runtime.losses.batch import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Columns `first : first + size` of a vocabulary of `whole`, split as torch.chunk splits it."""

    group: dist.ProcessGroup
    rank: int
    ranks: int
    first: int
    size: int
    whole: int

    @classmethod
    def of(cls, group: dist.ProcessGroup, size: int, vocabulary: int | None) -> Shard:
        """Return the shard of this rank, which holds `size` columns.

        Raises:
            ValueError: the size does not fit the split of torch.chunk.
        """
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        whole = vocabulary or size * ranks
        each = -(-whole // ranks)
        first = min(rank * each, whole)
        expected = min(each, whole - first)
        if size != expected or size == 0:
            raise ValueError(
                f"rank {rank} of {ranks} has {size} columns of a vocabulary of {whole}, but "
                f"should have {expected}: shards must be those of torch.chunk in the order of "
                "ranks; if they differ in size, pass the full size as vocabulary="
            )
        return cls(group=group, rank=rank, ranks=ranks, first=first, size=size, whole=whole)

    @property
    def largest(self) -> int:
        """Number of columns of the largest shard, equal on all ranks."""
        return -(-self.whole // self.ranks)

    def local(self, rows: Rows) -> Rows:
        """Return the rows with labels as columns of this shard; -1 if the label is in another
        shard."""
        labels = rows.labels - self.first
        here = (labels >= 0) & (labels < self.size)
        return rows.with_labels(labels.where(here, -1))

    def combine(
        self, found: Mapping[str, Tensor], here: Tensor, valid: Tensor
    ) -> dict[str, Tensor]:
        """Combine the statistics of shards into those of whole rows; a collective call."""
        names = [name for name in ("logsumexp", "entropy", "logprob", "mean_logprob")
                 if name in found]  # fmt: skip
        mine = torch.stack([here.to(found["logprob"].dtype), *(found[name] for name in names)])
        gathered = mine.new_empty((self.ranks * mine.shape[0], mine.shape[1]))
        dist.all_gather_single(gathered, mine, group=self.group)
        owned, *columns = gathered.view(self.ranks, *mine.shape).unbind(1)
        self._check(owned, valid)
        bounds = torch.arange(self.ranks + 1, device=mine.device) * self.largest
        sizes = bounds.clamp(max=self.whole).diff()
        return merge(dict(zip(names, columns, strict=True)), owned > 0, sizes)

    def _check(self, owned: Tensor, valid: Tensor) -> None:
        """Check that each label is in exactly one shard: raises IndexError on a CPU, a device
        assertion elsewhere."""
        once = ((owned.sum(0) == 1) | ~valid).all()
        message = (
            f"a label is outside the vocabulary of {self.whole}, or the shards of the "
            "vocabulary overlap"
        )
        if owned.is_cuda:
            torch._assert_async(once, message)
        elif not once:
            raise IndexError(message)

    def add_up(self, gradient: Tensor | None) -> None:
        """Sum the gradient of hidden states over all shards, in place."""
        if gradient is not None:
            dist.all_reduce(gradient, group=self.group)


def merge(part: Mapping[str, Tensor], owned: Tensor, sizes: Tensor) -> dict[str, Tensor]:
    """Combine statistics of parts of the vocabulary, each `[parts, rows]`, into those of whole
    rows. `owned` is True for the part with the label of a row; `sizes` are the columns of each
    part."""
    logsumexp = torch.logsumexp(part["logsumexp"], dim=0)
    shift = part["logsumexp"] - logsumexp
    share = shift.exp()
    whole = {
        "logprob": torch.where(owned, part["logprob"] + shift, 0.0).sum(0),
        "entropy": torch.where(share > 0, share * (part["entropy"] - shift), 0.0).sum(0),
        "logsumexp": logsumexp,
    }
    if "mean_logprob" in part:
        weight = sizes.to(shift.dtype).unsqueeze(1) / sizes.sum()
        whole["mean_logprob"] = ((part["mean_logprob"] + shift) * weight).sum(0)
    return whole
