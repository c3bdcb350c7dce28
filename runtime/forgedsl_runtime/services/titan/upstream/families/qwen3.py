"""Qwen3, dense, on torchtitan."""

from __future__ import annotations

from typing import Any

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.families.decoder import decoder_spec


def build(dims: Dims) -> Any:
    """Return the ModelSpec of a Qwen3 model."""
    from torchtitan.models.qwen3 import Qwen3TransformerBlock, model_registry

    return decoder_spec(dims, model_registry("debugmodel"), Qwen3TransformerBlock)
