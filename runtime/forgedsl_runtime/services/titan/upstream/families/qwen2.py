"""Qwen2 on torchtitan, which does not register it: Qwen3's model with biases of queries, keys and
values, and without norms of queries and keys."""

from __future__ import annotations

from typing import Any

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.families import qwen3


def build(dims: Dims) -> Any:
    """Return the ModelSpec of a Qwen2 model."""
    return qwen3.build(dims)
