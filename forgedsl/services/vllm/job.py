"""An engine in a job."""

from __future__ import annotations

import operator
from typing import Any, Literal

from pydantic import Field

from forgedsl.job.parts import Sampler


class VllmService(Sampler):
    kind: Literal["vllm"] = "vllm"
    gpu_memory: float | None = None
    """fraction of the GPU's memory; None: auto"""
    prefix_caching: bool = True
    cuda_graphs: bool = True
    max_running: int | None = None
    kv_dtype: Literal["auto", "fp8"] = "auto"
    weight_dtype: Literal["auto", "fp8"] = "auto"
    adapter_rank: int | None = Field(default=None, exclude_if=operator.not_)
    """rank of the LoRA adapter that a trainer publishes alone; the engine adds it to its base"""
    record_routes: bool = False
    """True if completions carry the experts of each token"""
    extra: dict[str, Any] = Field(default_factory=dict)

    @property
    def precision(self) -> str:
        if self.weight_dtype == "fp8":
            return "fp8"
        return "bf16" if self.kv_dtype == "fp8" else self.dtype
