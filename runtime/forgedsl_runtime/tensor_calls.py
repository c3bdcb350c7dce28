"""Calls of the functions of a program on tensors: advantages, filters, functions of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forgedsl_runtime.endpoints import GROUP


def call_on_tensors(function: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    """Call a tensor function on lists and return lists; token rows are cut to their true
    lengths."""
    import torch

    result = function(**{name: _tensor(value, name == GROUP) for name, value in args.items()})
    if not isinstance(result, torch.Tensor):
        return result
    if result.dim() < 2:
        return result.tolist()
    lengths = next(map(len, value) for value in args.values() if _ragged(value))
    return [row[:length] for row, length in zip(result.tolist(), lengths, strict=True)]


def _tensor(value: Any, whole: bool) -> Any:
    """Convert values per sequence to a tensor, and values per token to padded rows. `whole` values
    are int64 (group numbers)."""
    import torch

    if _ragged(value):
        bools = any(isinstance(row[0], bool) for row in value if row)
        rows = [torch.tensor(row, dtype=torch.bool if bools else torch.float64) for row in value]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    if isinstance(value, list) and _are_numbers(value):
        if value and all(isinstance(v, bool) for v in value):  # `rollout.truncated`
            return torch.tensor(value)
        return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)
    return value


def _are_numbers(values: list[Any]) -> bool:
    kinds = set(map(type, values))
    return kinds <= NUMBERS or all(isinstance(value, int | float) for value in values)


NUMBERS = {int, float, bool}


def _ragged(value: Any) -> bool:
    """True if the value is a list of lists: numbers per token for each sequence."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)
