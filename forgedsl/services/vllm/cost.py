"""Cost facts of a vLLM engine."""

from __future__ import annotations

from forgedsl.ir.program import Decl, Program
from forgedsl.services.base import SamplingCost
from forgedsl.services.vllm.memory import kv_itemsize
from forgedsl.sizes.memory import MAX_RUNNING
from forgedsl.sizes.meshes import number, value


def sampling(program: Program, decl: Decl) -> SamplingCost:
    return SamplingCost(
        shares_prompts=bool(value(decl, "engine.prefix_caching")),
        most=min(MAX_RUNNING, number(decl, "engine.max_running", MAX_RUNNING)),
        kv_itemsize=kv_itemsize(program, decl),
    )
