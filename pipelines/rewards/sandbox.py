"""Rewards that run what a policy wrote, isolated, and judge it from outside.

    completion -> last ```python block -> the calls of the cases in a sandbox -> 1.0 or 0.0

The isolation is `forgedsl_runtime.sandbox`: no network, no files of the host, no processes; the
expected values never enter the process that runs the code. `choose()` takes the strongest level
that the host has; `choose("namespaces")` refuses to start where there is only a weaker one.
"""

from __future__ import annotations

import re
from typing import Any

from forgedsl_runtime.sandbox import Limits, choose, judge

LEVEL = choose()
LIMITS = Limits(wall=10.0, cpu=8, memory=1 << 30)
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def run_unit_tests(r: Any, cases: list[str]) -> float:
    """1.0 if the code of rollout `r` passes every case (Python statements, mostly asserts)."""
    code = solution(r.response)
    return float(code is not None and all(judge(code, cases, limits=LIMITS, level=LEVEL)))


def solution(response: str) -> str | None:
    """The last block of code in a completion."""
    blocks = BLOCK.findall(response)
    return blocks[-1] if blocks else None
