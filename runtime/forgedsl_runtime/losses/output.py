"""What a loss returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forgedsl_runtime.losses.ones import one


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """Result of a loss. `loss` is differentiable. `metrics` has every report, and `entropy` if the
    loss reads log-probs. Each is the sum over this call, divided by the count of the whole step:
    the metrics of a step's microbatches add up. `kernel` names the implementation that ran."""

    loss: Tensor
    metrics: dict[str, Tensor]
    kernel: str
    logprob: Tensor | None = None
    """f32 [rows], log-prob of each label; NaN at rows that were left out. None unless the loss
    `keeps_logprobs`"""

    def backward(self) -> None:
        """Add the gradients of the loss to its inputs' `.grad`, as `loss.backward()` does.

        It is a little faster on a GPU (two kernels less): the gradient that goes into the loss is
        known to be 1, so nothing has to be multiplied by it.

        Raises:
            RuntimeError: the loss needs no gradient, or its gradient was computed before.
        """
        torch.autograd.backward(self.loss, one(self.loss.dtype, self.loss.device))
