"""Plugin of pytest: collecting tests must not load triton too early.

Tests of kernels choose triton's interpreter by an environment variable, before triton is imported.
If a module that is collected before them imports it, they all fail, and do not say why. So this
module is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

KERNELS = "numerics"
"""folder of tests of kernels; folders are collected in the order of their names"""
_seen: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if not _seen and isinstance(collector, pytest.Module) and "triton.language" in sys.modules:
        _seen.append(collector.nodeid)
        if collector.path.parent.name < KERNELS:
            report.outcome = "failed"
            report.longrepr = (
                f"{collector.nodeid} imports triton when it is collected. Import it in a test: "
                f"tests in {KERNELS}/ come later, and choose its interpreter before they import it."
            )
    return report
