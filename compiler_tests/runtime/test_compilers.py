"""Inductor compiles the kernels of an engine in several processes, although vLLM asks for none."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("vllm")
VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"
SCRIPT = f"""
import json, operator, os
from forgedsl_runtime.upstream.inductor import start_compilers
start_compilers(2)
import vllm
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
found = None
if get_compile_threads() > 1:
    AsyncCompile.wait_pool_ready()
    found = AsyncCompile.process_pool().submit(operator.add, 20, 3).result()
print("RESULT", json.dumps([os.environ["{VARIABLE}"], get_compile_threads(), found]), flush=True)
os._exit(0)
"""


def told(count: str) -> list[object]:
    """Return what the script tells where a user asks for `count` processes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False,
        env={**os.environ, VARIABLE: count},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[object] = json.loads(done.stdout.split("RESULT")[1])
    return found


def test_kernels_of_an_engine_are_compiled_by_several_processes() -> None:
    assert told("5") == ["1", 2, 23], "vLLM's variable, ours, and a sum computed by a process"


def test_a_user_can_ask_for_no_processes() -> None:
    assert told("1") == ["1", 1, None]
