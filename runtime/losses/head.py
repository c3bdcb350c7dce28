"""From logits, or from hidden states and the lm_head, to row statistics and back.

Every loss reaches the vocabulary only through log-prob, entropy, logsumexp and mean log-prob of
each row, so their gradients have one form (z = logits / T, p = softmax(z), y the label):

    dz = g (1[y] - p) - e p (log p + H) + c p + m (1/V - p)

with g, e, c, m the gradients of the loss with respect to the four statistics. Rows are processed
in chunks in float32; logits are never kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from forgedsl.runtime.losses.batch import ROW_STATISTICS

CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 29}
"""Logits of one chunk: 16 MiB on a CPU (near its caches), 2 GiB on a GPU (large products)."""


class Head:
    """Source of logits for a set of rows; collects the gradients of what made them."""

    kernel = ""

    def __init__(self, num_rows: int, vocabulary: int, device: torch.device, chunk: int | None):
        self.num_rows = num_rows
        self.chunk = chunk or max(64, CHUNK_ELEMENTS.get(device.type, 1 << 22) // vocabulary)
        self.gradients: tuple[Tensor | None, ...] = ()

    def chunks(self) -> Iterator[slice]:
        for start in range(0, self.num_rows, self.chunk):
            yield slice(start, min(start + self.chunk, self.num_rows))

    @property
    def single(self) -> bool:
        return self.num_rows <= self.chunk

    def logits(self, rows: slice) -> Tensor:
        """A fresh float tensor of logits, free to be overwritten."""
        raise NotImplementedError

    def start(self, needed: tuple[bool, ...]) -> None:
        """Clear the gradients of what made the logits; those not needed are None."""
        raise NotImplementedError

    def push(self, rows: slice, gradient: Tensor) -> None:
        """Accumulate the gradient of the logits of these rows."""
        raise NotImplementedError


class LogitsHead(Head):
    """Logits are given, `[R, V]`; `index` are the rows that count."""

    kernel = "torch/logits"

    def __init__(self, logits: Tensor, index: Tensor, dtype: torch.dtype, chunk: int | None):
        super().__init__(index.numel(), logits.shape[1], logits.device, chunk)
        self.source, self.index, self.dtype = logits, index, dtype

    def start(self, needed: tuple[bool, ...]) -> None:
        self.gradients = (torch.zeros_like(self.source) if needed[0] else None,)

    def logits(self, rows: slice) -> Tensor:
        return self.source[self.index[rows]].to(self.dtype)

    def push(self, rows: slice, gradient: Tensor) -> None:
        assert self.gradients[0] is not None
        self.gradients[0][self.index[rows]] = gradient.to(self.source.dtype)


class LinearHead(Head):
    """Logits are `hidden @ weight.T`, `hidden [R, H]`, `weight [V, H]`."""

    kernel = "torch/linear"

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        index: Tensor,
        dtype: torch.dtype,
        chunk: int | None,
    ):
        super().__init__(index.numel(), weight.shape[0], hidden.device, chunk)
        self.hidden, self.weight, self.index, self.dtype = hidden, weight, index, dtype
        self.fast = hidden.is_cuda and hidden.dtype == weight.dtype != dtype
        self.weight_compute = weight if self.fast else weight.to(dtype)

    def start(self, needed: tuple[bool, ...]) -> None:
        self.gradients = (
            torch.zeros_like(self.hidden) if needed[0] else None,
            torch.zeros_like(self.weight, dtype=self.dtype) if needed[1] else None,
        )

    def rows(self, rows: slice) -> Tensor:
        return self.hidden[self.index[rows]]

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
            d_hidden[self.index[rows]] = d_rows.to(self.hidden.dtype)
        if d_weight is None:
            return
        if self.fast:
            d_weight += torch.mm(gradient.t(), self.rows(rows), out_dtype=self.dtype)
        else:
            d_weight.addmm_(gradient.t(), self.rows(rows).to(self.dtype))


def statistics(z: Tensor, labels: Tensor, wanted: tuple[str, ...]) -> dict[str, Tensor]:
    """Row statistics of scaled logits `z [n, V]`; overwrites `z` with log p."""
    logsumexp = torch.logsumexp(z, dim=1)
    found = {"logsumexp": logsumexp}
    if "mean_logprob" in wanted:
        found["mean_logprob"] = z.mean(dim=1) - logsumexp
    z.sub_(logsumexp.unsqueeze(1))
    found["logprob"] = z.gather(1, labels.unsqueeze(1)).squeeze(1)
    p = z.exp()
    found["entropy"] = -torch.where(p > 0, p * z, 0.0).sum(dim=1)
    return {name: found[name] for name in ROW_STATISTICS if name in found}


def d_logits(
    logp: Tensor, labels: Tensor, entropy: Tensor, cotangents: Mapping[str, Tensor]
) -> Tensor:
    """The gradient of the scaled logits from the gradients of the row statistics."""
    p = logp.exp()
    zero = torch.zeros_like(entropy)
    g = cotangents.get("logprob", zero)
    m = cotangents.get("mean_logprob", zero)
    slope = cotangents.get("logsumexp", zero) - g - m
    gradient = p * slope.unsqueeze(1)
    if "entropy" in cotangents:
        e = cotangents["entropy"].unsqueeze(1)
        surprise = torch.where(p > 0, p * (logp + entropy.unsqueeze(1)), 0.0)
        gradient -= e * surprise
    if "mean_logprob" in cotangents:
        gradient += (m / logp.shape[1]).unsqueeze(1)
    return gradient.scatter_add_(1, labels.unsqueeze(1), g.unsqueeze(1))
