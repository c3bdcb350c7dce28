"""Llama on torchtitan."""

from __future__ import annotations

from typing import Any

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.families.decoder import decoder_spec


def build(dims: Dims) -> Any:
    """Return the ModelSpec of a Llama model."""
    from torchtitan.models.llama3 import Llama3TransformerBlock, model_registry

    return decoder_spec(dims, model_registry("debugmodel"), Llama3TransformerBlock)
