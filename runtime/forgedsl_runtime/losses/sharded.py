"""Vocabulary-parallel losses by the generated kernels.

    statistics of the shard  ->  exchange  ->  gradients of the statistics  ->  apply on the shard

Ranks exchange statistics between the two passes over the logits of a shard, so a fused kernel,
which reads logits once, is not possible: in bfloat16, 6 bytes are moved per logit in place of 4.
From hidden states, a token-local loss still needs only three products per chunk.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from forgedsl_runtime.losses.fused import Evaluation, LogitsEvaluation
from forgedsl_runtime.losses.kernels import scale
from forgedsl_runtime.losses.linear import LinearEvaluation
from forgedsl_runtime.losses.parallel import Shard


class Exchange:
    """Combines the statistics of rows over all shards. For a token-local loss, also computes the
    gradients of these statistics."""

    def __init__(
        self, run: Evaluation, shard: Shard, module: ModuleType, step: Any, temperature: float
    ) -> None:
        self.run, self.shard, self.module, self.step = run, shard, module, step
        self.here = run.rows.labels >= 0
        self.names = run.kernels.module.STATISTICS
        self.gradients = run.kernels.module.GRADIENTS
        rows = run.rows
        run.arguments["scale"] = scale(temperature, shard.whole, rows.dtype, run.device)
        for name in self.gradients:
            blank = torch.zeros(rows.num_kept, dtype=rows.dtype, device=run.device)
            run.arguments[f"d_{name}_ptr"] = blank
        self.sums = module.prepare(rows.namespace(step, {}))

    def whole(self, rows: slice) -> None:
        """Replace the statistics of the shard by those of the whole rows."""
        found = dict(zip(self.names, self.run.statistics[:, rows], strict=True))
        combined = self.shard.combine(found, self.here[rows], self.run.rows.valid[rows])
        for name, place in found.items():
            place.copy_(combined[name])

    def decide(self, rows: slice) -> None:
        """Compute the gradients of the statistics of these rows, for a token-local loss."""
        found = dict(zip(self.names, self.run.statistics[:, rows], strict=True))
        gradient = self.module.gradient(self.run.rows.namespace(self.step, found, rows), self.sums)
        used = torch.zeros_like(self.here[rows])
        for name in self.gradients:
            self.run.arguments[f"d_{name}_ptr"][rows] = gradient[name]
            used |= gradient[name] != 0
        self.run.arguments["active"][rows] = used


class Logits(LogitsEvaluation):
    """Evaluation from given logits of a shard, `[R, V / ranks]`."""

    def __init__(self, *args: Any, shard: Shard, module: ModuleType, **more: Any) -> None:
        super().__init__(*args, **more)
        self.exchange = Exchange(self, shard, module, *args[2:])

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        every = slice(0, self.rows.num_kept)
        self.kernel = "triton/logits/sharded"
        self.launch_over_rows("statistics", self.logits, None)
        self.exchange.whole(every)
        self.finish()
        if not any(needed):
            return
        if self.kernels.local:
            self.exchange.decide(every)
        gradient = self.logits if self.inplace else torch.empty_like(self.logits)
        self.launch_over_rows("apply", self.logits, gradient)
        self.gradients = (gradient,)


class Linear(LinearEvaluation):
    """Logits of a shard are `hidden @ weight.T`, `weight [V / ranks, H]`."""

    def __init__(self, *args: Any, shard: Shard, module: ModuleType, **more: Any) -> None:
        super().__init__(*args, **more)
        self.exchange = Exchange(self, shard, module, *args[2:])

    def evaluate(self, needed: tuple[bool, ...]) -> None:
        self._start(needed)
        self.kernel = "triton/linear/sharded"
        local, chunks = self.kernels.local, list(self._chunks())
        for rows in chunks:
            logits = self._logits(rows)
            self.launch_over_rows("statistics", logits, None, rows)
            self.exchange.whole(rows)
            if any(needed) and (local or len(chunks) == 1):
                self._apply(logits, rows)
        if local or len(chunks) > 1 or not any(needed):
            self.finish()
        if any(needed) and not local and len(chunks) > 1:
            for rows in chunks:
                self._apply(self._logits(rows), rows)
        self._end(needed)
        if self.gradients is not None:
            self.exchange.shard.add_up(self.gradients[0])

    def _apply(self, logits: torch.Tensor, rows: slice) -> None:
        """Compute the logits gradient of a chunk, and add its products to the gradients of the
        sources."""
        if self.kernels.local:
            self.exchange.decide(rows)
        elif rows == slice(0, self.rows.num_kept):
            self.finish()
        gradient = self._gradient(logits)
        self.launch_over_rows("apply", logits, gradient, rows)
        self._push(gradient, rows)
