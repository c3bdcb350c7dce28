"""Evaluate a loss by its torch module, in chunks of rows, on any device.

For a token-local loss, forward computes the gradients of hidden states and weight while the logits
of a chunk exist: three matrix products in all. A sequence-coupled loss needs the log-probs of whole
sequences first, so backward computes the logits again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from forgedsl_runtime.losses import head as heads
from forgedsl_runtime.losses.batch import ROW_STATISTICS, Rows
from forgedsl_runtime.losses.parallel import Shard


class Run:
    """One evaluation of a loss: rows, counts, and the source of logits."""

    def __init__(
        self,
        module: ModuleType,
        rows: Rows,
        step: SimpleNamespace,
        head: heads.Head,
        temperature: float,
        *,
        mean_logprob: bool,
        shard: Shard | None = None,
    ) -> None:
        self.module = module
        self.shard = shard
        self.mean_logprob = mean_logprob
        self.rows = rows
        self.step = step
        self.head = head
        self.temperature = temperature
        self.metrics: dict[str, Tensor] = {}
        self.statistics: dict[str, Tensor] = {}
        self.cotangents: dict[str, Tensor] | None = None
        self.needed: tuple[bool, ...] = ()

    def forward(self, needed: tuple[bool, ...]) -> Tensor:
        """Compute the loss and the metrics; also the gradients if one pass suffices."""
        fused = self.head.single or self.module.PHASE == "token-local"
        differentiate = any(needed)
        self.needed = needed
        if differentiate and fused:
            self.head.start(needed)
        parts = []
        for rows in self.head.chunks():
            softmax, found = self._statistics(rows)
            if differentiate and fused:
                self._push(rows, softmax, self._gradient(found, rows))
            parts.append(found)
        if differentiate and fused:
            self._add_up()
        empty = self.rows.labels.new_zeros(0, dtype=self.rows.dtype)
        self.statistics = {
            name: torch.cat([part[name] for part in parts] or [empty])
            for name in (parts[0] if parts else ROW_STATISTICS)
        }
        if differentiate and not fused:
            self.cotangents = self._gradient(self.statistics, slice(None))
        return self._value()

    def _value(self) -> Tensor:
        """Compute the loss and the metrics from the statistics."""
        loss, reports = self.module.loss(self.rows.namespace(self.step, self.statistics))
        entropy = self.statistics["entropy"].where(self.rows.valid, 0.0).sum()
        entropy = entropy / self.step.num_tokens
        self.metrics = {"entropy": entropy}
        for name, value in reports.items():
            self.metrics[name] = torch.as_tensor(value, dtype=self.rows.dtype)
        return torch.as_tensor(loss, dtype=self.rows.dtype, device=entropy.device)

    @property
    def kernel(self) -> str:
        return self.head.kernel

    def backward(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, multiplied by `grad`."""
        if self.cotangents is not None:
            self.head.start(self.needed)
            for rows in self.head.chunks():
                softmax, _ = self._statistics(rows)
                part = {name: value[rows] for name, value in self.cotangents.items()}
                self._push(rows, softmax, part)
            self._add_up()
        return tuple(None if part is None else part * grad for part in self.head.gradients)

    @functools.cached_property
    def _sums(self) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = self.module.prepare(self.rows.namespace(self.step, {}))
        return sums

    def _statistics(self, rows: slice) -> tuple[heads.Softmax, dict[str, Tensor]]:
        z = self.head.logits(rows)
        if self.temperature != 1.0:
            z /= self.temperature
        labels = self.rows.labels[rows].long()
        if self.rows.index is None:  # masked rows were not removed: clear them
            dropped = ~self.rows.valid[rows]
            labels = labels.masked_fill(dropped, 0)
            z.masked_fill_(dropped.unsqueeze(1), 0.0)
        if self.shard is None:
            return heads.Softmax.of(z, labels, mean_logprob=self.mean_logprob)
        places = labels.clamp(min=0)
        softmax, part = heads.Softmax.of(z, places, mean_logprob=self.mean_logprob)
        found = self.shard.combine(part, labels >= 0, self.rows.valid[rows])
        softmax.rebase(found)
        return softmax, found

    def _gradient(self, found: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
        x = self.rows.namespace(self.step, found, rows)
        gradient: dict[str, Tensor] = self.module.gradient(x, self._sums)
        return gradient

    def _add_up(self) -> None:
        """Sum the gradient of hidden states over shards; the gradient of a shard's weight is
        complete."""
        if self.shard is not None and isinstance(self.head, heads.LinearHead):
            self.shard.add_up(self.head.gradients[0])

    def _push(self, rows: slice, softmax: heads.Softmax, part: Mapping[str, Tensor]) -> None:
        labels = self.rows.labels[rows].long()
        labels = labels.masked_fill(~self.rows.valid[rows], 0)
        vocabulary = softmax.weights.shape[1] if self.shard is None else self.shard.whole
        gradient = softmax.gradient(labels, part, vocabulary)
        if self.temperature != 1.0:
            gradient /= self.temperature
        self.head.push(rows, gradient)
