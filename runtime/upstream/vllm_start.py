"""How an engine of vLLM gets ready sooner, and what its start takes.

    preload --> imports    while the controller still starts the other processes
    quick   --> Engine     with vLLM's own start, less what a run has no use for
            `-> seconds by phase

Left out or made cheaper: the process in which vLLM would import everything again to look at the
model's class; Triton kernels of sampling that nobody asked for; most of the 137 CUDA graphs, of
which vLLM records the half twice to learn how much memory they take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from forgedsl.lower import job as spec

PHASES = (
    ("model", "_init_executor"),
    ("compile", "determine_available_memory"),
    ("graphs", "compile_or_warm_up_model"),
)
"""what `Engine` calls the phases of a start, and the methods of vLLM's executor that they are"""
LARGEST_GRAPH = 512
"""tokens of a step with prompts in it; vLLM's own limit on Hopper"""


def preload(device: str) -> float:
    """Import what an engine on a device needs; the seconds that it took."""
    begin = time.perf_counter()
    if device == "cpu":
        # the engine is eager there, but vLLM compiles a count of ranks with the C++ compiler
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    from vllm import EngineArgs, SamplingParams, TokensPrompt  # noqa: F401
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: F401

    return time.perf_counter() - begin


def graph_sizes(running: int) -> list[int]:
    """Steps of how many tokens are recorded as CUDA graphs, for so many requests at once.

    A step takes the next larger graph; what it computes too much is rows of matrix products, which
    cost next to nothing while the weights are read anyway. vLLM's own list has one for each 8.
    """
    top = min(max(LARGEST_GRAPH, running), 2 * running)
    powers = [2**k for k in range(top.bit_length())]
    halves = [3 * n // 2 for n in powers if n > 1]
    return sorted({n for n in (*powers, *halves, running, top) if n <= top})


@contextmanager
def quick(sampling: spec.Sampling, seconds: dict[str, float]) -> Iterator[None]:
    """Around the making of an engine: a shorter start, whose phases go to `seconds`."""
    from vllm import SamplingParams
    from vllm.model_executor.models import registry
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    wanted = SamplingParams(
        temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or 0,
        min_p=sampling.min_p, min_tokens=min(2, sampling.min_tokens), max_tokens=16, logprobs=0,
        prompt_logprobs=0,
    )  # fmt: skip
    with ExitStack() as stack:
        # in another process "to avoid initializing CUDA", which is about to happen here
        stack.enter_context(patch.object(registry, "_run_in_subprocess", lambda call: call()))
        stack.enter_context(
            patch.object(SamplingParams, "for_sampler_warmup", staticmethod(lambda: wanted))
        )
        for phase, name in PHASES:
            call = _timed(getattr(UniProcExecutor, name), phase, seconds)
            stack.enter_context(patch.object(UniProcExecutor, name, call))
        yield


def _timed(call: Callable[..., Any], phase: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - begin

    return timed
