"""Adapter of Inductor, the compiler behind torch.compile."""

from __future__ import annotations

from typing import Any


def start_compilers() -> None:
    """Start the processes in which Inductor compiles kernels; return at once. By itself it starts
    them with the first kernel, and compiles one kernel after the other until they are ready.
    Without effect in a process that has imported vLLM, which tells Inductor to use none."""
    from torch._inductor.async_compile import AsyncCompile

    pool: Any = AsyncCompile
    pool.use_process_pool()


def compile_for_any_length() -> None:
    """Let Inductor combine the two sums in the backward pass of a norm whatever the number of
    tokens. By itself it does so only from certain numbers on, and compiles a layer again when a
    microbatch has fewer."""
    from torch._inductor import config

    config.triton.mix_order_reduction_non_strict_mode = True
