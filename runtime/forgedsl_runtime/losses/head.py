"""Compute row statistics from logits, or from hidden states and the lm_head, and their gradients.

Every loss reaches the vocabulary only through log-prob, entropy, logsumexp and mean log-prob of
each row, so their gradients have one form (z = logits / T, p = softmax(z), y the label):

    dz = g (1[y] - p) - e p (log p + H) + c p + m (1/V - p)

with g, e, c, m the gradients of the loss with respect to the four statistics. Rows are processed
in chunks in float32; logits are never kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import NO_LABEL, Rows, slices

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 29}
"""Number of logits in a chunk. On a CPU 16 MiB, about the size of its caches; on a GPU 2 GiB, since
large products are fast."""


def every_row(labels: Tensor, dtype: torch.dtype = torch.float32) -> Rows:
    """Return packed rows that are all valid, without inputs."""
    return Rows(
        index=None,
        num_rows=labels.numel(),
        labels=labels,
        mask=None,
        ignore_index=NO_LABEL,
        packed_id=torch.zeros_like(labels),
        seq_len=0,
        num_sequences=1,
        tokens={},
        sequences={},
        dtype=dtype,
        paired=False,
    )


def rows_of_chunk(device: torch.device, vocabulary: int) -> int:
    """Return how many rows of logits exist at a time."""
    return max(64, CHUNK_ELEMENTS.get(device.type, 1 << 22) // vocabulary)


class Head:
    """Source of logits for a set of rows; accumulates the gradients of its inputs."""

    kernel = ""

    def __init__(self, rows: Rows, vocabulary: int, chunk: int | None):
        self.index = rows.index
        self.num_rows = rows.num_kept
        self.gradients: tuple[Tensor | None, ...] = ()
        self.chunk = chunk or rows_of_chunk(rows.labels.device, vocabulary)

    def chunks(self) -> Iterator[slice]:
        return slices(self.num_rows, self.chunk)

    def at(self, rows: slice) -> slice | Tensor:
        """Return the positions of these rows in the source."""
        return rows if self.index is None else self.index[rows]

    def allocate_gradient(self, like: Tensor) -> Tensor:
        """Allocate the gradient of the source; rows that are left out are zero."""
        return torch.empty_like(like) if self.index is None else torch.zeros_like(like)

    @property
    def single(self) -> bool:
        return self.num_rows <= self.chunk

    def logits(self, rows: slice) -> Tensor:
        """Return a new float tensor of logits, which may be overwritten."""
        raise NotImplementedError

    def start(self, needed: tuple[bool, ...]) -> None:
        """Reset the gradients of the sources; those not needed are None."""
        raise NotImplementedError

    def push(self, rows: slice, gradient: Tensor) -> None:
        """Accumulate the gradient of the logits of these rows."""
        raise NotImplementedError


class LogitsHead(Head):
    """Logits are given, `[R, V]`; `index` are the rows that count."""

    kernel = "torch/logits"

    def __init__(self, logits: Tensor, rows: Rows, dtype: torch.dtype, chunk: int | None):
        super().__init__(rows, logits.shape[1], chunk)
        self.source, self.dtype = logits, dtype

    def start(self, needed: tuple[bool, ...]) -> None:
        self.gradients = (self.allocate_gradient(self.source) if needed[0] else None,)

    def logits(self, rows: slice) -> Tensor:
        return self.source[self.at(rows)].to(self.dtype, copy=self.index is None)

    def push(self, rows: slice, gradient: Tensor) -> None:
        assert self.gradients[0] is not None
        self.gradients[0][self.at(rows)] = gradient.to(self.source.dtype)


class LinearHead(Head):
    """Logits are `hidden @ weight.T`, `hidden [R, H]`, `weight [V, H]`."""

    kernel = "torch/linear"

    def __init__(
        self, hidden: Tensor, weight: Tensor, rows: Rows, dtype: torch.dtype, chunk: int | None
    ):
        super().__init__(rows, weight.shape[0], chunk)
        if rows.index is None:  # masked rows were not removed: clear them
            hidden = hidden.masked_fill(~rows.valid.unsqueeze(1), 0.0)
        self.hidden, self.weight, self.dtype = hidden, weight, dtype
        self.fast = hidden.is_cuda and hidden.dtype == weight.dtype != dtype
        self.weight_compute = weight if self.fast else weight.to(dtype)

    def start(self, needed: tuple[bool, ...]) -> None:
        self.gradients = (
            self.allocate_gradient(self.hidden) if needed[0] else None,
            torch.zeros_like(self.weight, dtype=self.dtype) if needed[1] else None,
        )

    def rows(self, rows: slice) -> Tensor:
        return self.hidden[self.at(rows)]

    def logits(self, rows: slice) -> Tensor:
        if self.fast:
            return torch.mm(self.rows(rows), self.weight.t(), out_dtype=self.dtype)
        return self.rows(rows).to(self.dtype) @ self.weight_compute.t()

    def push(self, rows: slice, gradient: Tensor) -> None:
        if self.fast:
            gradient = gradient.to(self.weight.dtype)
        d_hidden, d_weight = self.gradients
        if d_hidden is not None:
            d_rows = gradient @ self.weight_compute
            d_hidden[self.at(rows)] = d_rows.to(self.hidden.dtype)
        if d_weight is None:
            return
        if self.fast:
            d_weight += torch.mm(gradient.t(), self.rows(rows), out_dtype=self.dtype)
        else:
            d_weight.addmm_(gradient.t(), self.rows(rows).to(self.dtype))


@dataclass(slots=True)
class Softmax:
    """Unnormalized softmax of a chunk: `weights = exp(shifted)`, `total` their row sums. `shifted`
    are the scaled logits minus the row maximum, kept finite so that 0 log 0 is 0."""

    peak: Tensor
    shifted: Tensor
    weights: Tensor
    total: Tensor
    log_total: Tensor
    entropy: Tensor

    @classmethod
    def of(
        cls, z: Tensor, labels: Tensor, *, mean_logprob: bool
    ) -> tuple[Softmax, dict[str, Tensor]]:
        """Compute the softmax of scaled logits `z [n, V]`, which is overwritten, and the row
        statistics."""
        lowest = torch.finfo(z.dtype).min
        peak = z.amax(dim=1).clamp_(min=lowest)  # a shard may have no logit above -inf
        mean = z.mean(dim=1) if mean_logprob else None
        z.sub_(peak.unsqueeze(1))
        chosen = z.gather(1, labels.unsqueeze(1)).squeeze(1)
        z.clamp_(min=lowest)
        weights = z.exp()
        total = weights.sum(dim=1)
        log_total = total.log()
        entropy = log_total - torch.einsum("nv,nv->n", weights, z) / total
        found = {"logprob": chosen - log_total, "entropy": entropy, "logsumexp": peak + log_total}
        if mean is not None:
            found["mean_logprob"] = mean - peak - log_total
        return cls(peak, z, weights, total, log_total, entropy), found

    def rebase(self, whole: Mapping[str, Tensor]) -> None:
        """Normalize a shard's probabilities with the statistics of whole rows."""
        self.log_total = (whole["logsumexp"] - self.peak).clamp(max=1e4)
        self.total = self.log_total.exp()
        self.entropy = whole["entropy"]

    def gradient(self, labels: Tensor, cotangents: Mapping[str, Tensor], vocabulary: int) -> Tensor:
        """Return d loss / d z from the gradients of the row statistics; overwrites the softmax. A
        negative label belongs to another shard of the vocabulary."""
        zero = torch.zeros_like(self.entropy)
        g = cotangents.get("logprob", zero)
        m = cotangents.get("mean_logprob", zero)
        slope = cotangents.get("logsumexp", zero) - g - m
        if "entropy" in cotangents:
            e = cotangents["entropy"]
            slope = (slope - e * (self.entropy - self.log_total)) / self.total
            tilted = self.shifted.mul_((-e / self.total).unsqueeze(1)).add_(slope.unsqueeze(1))
            gradient = self.weights.mul_(tilted)
        else:
            gradient = self.weights.mul_((slope / self.total).unsqueeze(1))
        if "mean_logprob" in cotangents:
            gradient.add_((m / vocabulary).unsqueeze(1))
        at_label = g.where(labels >= 0, 0.0).unsqueeze(1)
        return gradient.scatter_add_(1, labels.clamp(min=0).unsqueeze(1), at_label)
