"""Cost facts of a vLLM engine."""

from __future__ import annotations

from forgedsl.ir.program import Decl, Program
from forgedsl.services.base import SamplingCost
from forgedsl.services.vllm.memory import kv_itemsize, max_running
from forgedsl.sizes.meshes import value


def sampling(program: Program, decl: Decl) -> SamplingCost:
    return SamplingCost(
        shares_prompts=bool(value(decl, "engine.prefix_caching")),
        most=max_running(decl),
        kv_itemsize=kv_itemsize(program, decl),
    )
