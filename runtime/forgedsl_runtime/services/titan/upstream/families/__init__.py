"""Model families on torchtitan: dimensions in, torchtitan's own `ModelSpec` out; one file a family.

`BUILDERS` lists all families by the compiler's names.
"""

from __future__ import annotations

from typing import Any

from forgedsl.families.base import Dims, Family
from forgedsl_runtime.services.titan.upstream.families import (
    glm4_moe,
    llama3,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
)
from forgedsl_runtime.services.titan.upstream.families.decoder import Builder

BUILDERS: tuple[tuple[str, Builder], ...] = (
    ("qwen2", qwen2.build),
    ("qwen3", qwen3.build),
    ("qwen3_moe", qwen3_moe.build),
    ("glm4_moe", glm4_moe.build),
    ("llama3", llama3.build),
    ("phi3", phi3.build),
)


def build(family: Family, dims: Dims) -> Any:
    """Return torchtitan's ModelSpec for a model of `family`."""
    return dict(BUILDERS)[family.like or family.name](dims)
