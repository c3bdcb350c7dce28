"""The number 1 on a device, recognized by identity.

The gradient that goes into a loss is nearly always 1, but the host cannot read it without waiting
for the device. `LossOutput.backward` passes the tensor of this module, which needs no reading.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONES: dict[tuple[torch.dtype, torch.device], Tensor] = {}
"""scalars of 1 that were handed out"""


def one(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a scalar of 1. It is the same tensor for each call, and must not be written to."""
    found = ONES.get((dtype, device))
    if found is None or not _untouched(found):  # a hook of the loss may have multiplied it
        found = ONES[dtype, device] = torch.ones((), dtype=dtype, device=device)
    return found


def is_one(value: Tensor) -> bool:
    """Return whether `value` is a scalar that `one` made. False says nothing about its value."""
    return ONES.get((value.dtype, value.device)) is value and _untouched(value)


def _untouched(value: Tensor) -> bool:
    return value._version == 0
