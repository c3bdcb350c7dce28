"""Check shapes, dtypes and devices of a loss call.

A wrong shape, device or temperature raises ValueError, a wrong dtype TypeError, a label outside of
the vocabulary IndexError.

`batch.pack` checks the inputs of the loss. This module checks logits, hidden states, weight and
labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import Rows


def check_tensors(**given: Any) -> None:
    """Check that arguments are tensors; `mask` and `seq_id` may be None."""
    for name, value in given.items():
        optional = name in ("mask", "seq_id")
        if not (isinstance(value, Tensor) or (optional and value is None)):
            kind = type(value).__name__
            raise TypeError(f"{name} is a {kind}, but a tensor is needed")


def check_counts(counts: Mapping[str, Any]) -> None:
    """Check that the counts of a step are numbers or tensors."""
    for name, value in counts.items():
        if isinstance(value, str | list | tuple):
            raise TypeError(f"{name} is {value!r}, but a number or a tensor is needed")


def check_logits(logits: Tensor, labels: Tensor) -> None:
    """Check the logits form: shapes, dtype and device."""
    check_tensors(logits=logits, labels=labels)
    if logits.dim() not in (2, 3) or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits {list(logits.shape)} do not fit labels {list(labels.shape)}: shapes must be "
            "[B, T, V] and [B, T], or [N, V] and [N]"
        )
    check_floating("logits", logits)
    check_device("labels", labels, "logits", logits)


def check_linear(hidden: Tensor, weight: Tensor, labels: Tensor) -> None:
    """Check hidden states and lm_head of the linear form."""
    check_tensors(hidden=hidden, weight=weight, labels=labels)
    if hidden.dim() not in (2, 3) or hidden.shape[:-1] != labels.shape:
        raise ValueError(
            f"hidden {list(hidden.shape)} does not fit labels {list(labels.shape)}: shapes must "
            "be [N, H] and [N], or [B, T, H] and [B, T]"
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"weight {list(weight.shape)} does not fit hidden {list(hidden.shape)}: its shape "
            "must be [V, H]"
        )
    if hasattr(weight, "full_tensor"):
        raise TypeError(
            "weight is a DTensor: pass weight.full_tensor(), or weight.to_local() with the group= "
            "whose ranks share the vocabulary"
        )
    check_floating("hidden", hidden)
    check_floating("weight", weight)
    check_device("weight", weight, "hidden", hidden)
    check_device("labels", labels, "hidden", hidden)


def check_temperature(temperature: float) -> None:
    """Check that the temperature is positive."""
    if isinstance(temperature, str) or (isinstance(temperature, (int, float)) and temperature <= 0):
        raise ValueError(f"temperature is {temperature!r}; it must be a number above 0")


def check_floating(name: str, value: Tensor) -> None:
    """Check that losses support the dtype."""
    if value.dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise TypeError(
            f"{name} is {value.dtype}; it must be float32, bfloat16, float16 or float64"
        )


def check_device(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Check that two tensors of a call are on one device."""
    if value.device != other.device:
        raise ValueError(f"{name} is on {value.device}, but {other_name} is on {other.device}")


def check_labels(rows: Rows, vocabulary: int) -> None:
    """Check that labels of valid rows are within the vocabulary. Waits for the device."""
    counted = rows.labels[rows.valid]
    if not counted.numel():
        return
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= vocabulary:
        raise IndexError(
            f"labels range from {low} to {high}, but the vocabulary has {vocabulary} entries; for "
            "tokens to ignore, set the label to ignore_index (-100) or the mask to false"
        )
