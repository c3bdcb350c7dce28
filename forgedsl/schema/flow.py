"""Names of the batches and losses of a step."""

from __future__ import annotations


def place(what: str, index: int) -> str:
    """`batch`, `batch_2`, ...: the arguments of a step, and `loss`, `loss_2`, ... its losses."""
    return what if index == 0 else f"{what}_{index + 1}"
