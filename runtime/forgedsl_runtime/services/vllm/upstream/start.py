"""Faster start of a vLLM engine, with the time of each phase.

    preload    --> imports    while the controller still imports its own modules
    fast_start --> Engine     vLLM's own start, without parts that a run does not need
               `-> seconds by phase

vLLM would import everything again in another process, to inspect the model's class: this is
skipped. Triton kernels for sampling settings that are not used are not compiled. vLLM would record
137 CUDA graphs, half of them twice to measure their memory; here only a few are recorded. A child
process saves the compiled model (`compiled_model.py`), and a thread compiles the kernels of decode
attention. Garbage collections look only at what is new.
"""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream.compiled_model import save_aside

PHASES = (
    ("model", "_init_executor"),
    ("compile", "determine_available_memory"),
    ("graphs", "compile_or_warm_up_model"),
)
"""names of the startup phases, and the methods of vLLM's executor that implement them"""
LARGEST_GRAPH = 512
"""largest number of tokens of a graph for steps with prompts; vLLM's own limit on Hopper"""


@functools.cache
def preload(device: str) -> float:
    """Import the modules that an engine on a device needs; return the seconds that it took. Later
    calls return the same number."""
    begin = time.perf_counter()
    if device == "cpu":
        # On CPUs the engine is eager, but without this vLLM would still compile one function (the
        # ranks of sampled tokens) to C++.
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    from vllm import EngineArgs, SamplingParams, TokensPrompt  # noqa: F401
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: F401

    return time.perf_counter() - begin


def graph_sizes(running: int) -> list[int]:
    """Return the step sizes, in tokens, to record as CUDA graphs for `running` concurrent requests.
    A step uses the next larger graph. The surplus rows of matrix products cost almost nothing,
    since the weights are read anyway. vLLM's own list has one size for every 8 tokens."""
    top = min(max(LARGEST_GRAPH, running), 2 * running)
    powers = [2**k for k in range(top.bit_length())]
    halves = [3 * n // 2 for n in powers if n > 1]
    return sorted({n for n in (*powers, *halves, running, top) if n <= top})


@contextmanager
def fast_start(sampling: spec.Sampling, seconds: dict[str, float]) -> Iterator[None]:
    """Shorten the start of an engine made inside this context; write the phase times to
    `seconds`."""
    from vllm import SamplingParams
    from vllm.model_executor.models import registry
    from vllm.utils import gc_utils
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    wanted = SamplingParams(
        temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or 0,
        min_p=sampling.min_p, min_tokens=min(2, sampling.min_tokens), max_tokens=16, logprobs=0,
        prompt_logprobs=0,
    )  # fmt: skip
    with ExitStack() as stack:
        # vLLM uses another process "to avoid initializing CUDA", but CUDA is initialized here
        # anyway.
        stack.enter_context(patch.object(registry, "_run_in_subprocess", lambda call: call()))
        stack.enter_context(
            patch.object(SamplingParams, "for_sampler_warmup", staticmethod(lambda: wanted))
        )
        stack.enter_context(patch.object(gc_utils, "gc", StaysFrozen()))
        for phase, name in PHASES:
            call = getattr(UniProcExecutor, name)
            if phase == "compile":
                call = _with_helpers(call)
            call = _timed(call, phase, seconds)
            stack.enter_context(patch.object(UniProcExecutor, name, call))
        yield


class StaysFrozen:
    """Python's `gc` for vLLM's start, but what is frozen stays frozen. vLLM freezes all objects
    while it records graphs, and unfreezes them before the next collection. Each collection then
    took 0.6 s, most of it for what was imported."""

    def unfreeze(self) -> None:
        """Do nothing. At the end of its start, vLLM freezes all objects anyway."""

    def __getattr__(self, name: str) -> Any:
        return getattr(gc, name)


def _with_helpers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a phase beside which a thread compiles kernels, and child processes save compiled
    models."""

    def with_helpers(executor: Any, *args: Any, **kwargs: Any) -> Any:
        executor.collective_rpc("apply_model", args=(save_aside,))
        if executor.vllm_config.device_config.device_type == "cuda":
            from forgedsl_runtime.services.vllm.upstream.attention_backend import compile_in_thread

            compile_in_thread(executor.vllm_config)
        return call(executor, *args, **kwargs)

    return with_helpers


def _timed(call: Callable[..., Any], phase: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - begin

    return timed
