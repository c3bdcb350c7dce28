"""Rewards that run what a policy wrote, in a process of its own with hard limits.

    completion -> last ```python block -> child process, then the cases -> 1.0 or 0.0

The child is a fresh interpreter without the user's environment and site-packages, in an empty
folder, in a session of its own. It may use `CPU_SECONDS` of processor time, `MEMORY` bytes, write
files of at most 1 MiB, and start no process of its own; after `WALL_SECONDS` its whole session is
killed. It passes only if it reaches the end of the last case: an answer that exits before, even
with code 0, fails. The network is not cut off: on a host where that matters, give the reward pool
a container.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

CPU_SECONDS = 8
WALL_SECONDS = 10.0
MEMORY = 1 << 30
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

CHILD = """
import json, os, resource, sys
cpu, memory, word, code, cases = json.loads(sys.stdin.read())
report = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for limit, value in (
    (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_AS, memory),
    (resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (value, value))
names = {"__name__": "answer"}
for text in (code, *cases):
    exec(compile(text, "<answer>", "exec"), names)
os.write(report, word.encode())
"""


def run_unit_tests(r: Any, cases: list[str]) -> float:
    """1.0 if the code of rollout `r` passes every case (Python statements, mostly asserts)."""
    code = solution(r.response)
    return float(code is not None and passes(code, cases))


def solution(response: str) -> str | None:
    """The last block of code in a completion."""
    blocks = BLOCK.findall(response)
    return blocks[-1] if blocks else None


def passes(
    code: str, cases: list[str], *, wall: float = WALL_SECONDS, cpu: int = CPU_SECONDS
) -> bool:
    """Whether `code`, then every case, runs to its end within the limits."""
    word = f"{os.getpid()}-{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            task = json.dumps([cpu, MEMORY, word, code, cases])
            output, _ = child.communicate(task.encode(), timeout=wall)
        except subprocess.TimeoutExpired:
            return False
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
    return output.decode() == word
