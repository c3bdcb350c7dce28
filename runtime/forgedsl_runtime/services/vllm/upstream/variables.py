"""Environment variables that vLLM and its libraries read when they are imported.

This module imports neither torch nor vLLM: all processes of a run set these variables as they
start, and those of rewards and environments need neither of the two.
"""

from __future__ import annotations

import os

from forgedsl_runtime.temporary_files import short_folder

CPU_KV_CACHE_GIB = 1
CACHED = "256"
"""number of kernels in oneDNN's cache (default 1,024): one per shape of a product, 0.2 MiB each"""


def prepare_environment(device: str) -> None:
    """Set environment variables that vLLM reads at import; call before anything imports vllm."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    wanted |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_RPC_BASE_PATH": short_folder(os.environ)}
    if device == "cpu":
        wanted |= {"VLLM_CPU_KVCACHE_SPACE": str(CPU_KV_CACHE_GIB)}
        wanted |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": CACHED}
    os.environ.update({k: v for k, v in wanted.items() if v and k not in os.environ})
