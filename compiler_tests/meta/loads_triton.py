"""Plugin of pytest that prints the module of tests after whose import triton is loaded."""

import sys

import pytest

_found: list[str] = []


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if not _found and "triton.language" in sys.modules:
        _found.append(report.nodeid)
        sys.stdout.write(f"\ntriton is loaded by {report.nodeid}\n")
