"""Collecting tests does not load triton too early.

Tests of kernels choose triton's interpreter by an environment variable, before triton is imported.
If a module that is collected before them has imported it, they all fail, and do not say why.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = "numerics"
EARLIER = [
    str(path)
    for path in sorted(HERE.parent.iterdir())
    if path.name < KERNELS and any(path.glob("test_*.py"))
]
"""folders of tests that are collected before those of kernels"""


def collected(*paths: str) -> str:
    """What pytest says when it collects these tests in a process of its own."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "loads_triton",
             "-p", "no:cacheprovider", "-n", "0", *paths]  # fmt: skip
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(240)
def test_no_earlier_module_loads_triton() -> None:
    assert "triton is loaded by" not in collected(*EARLIER)


@pytest.mark.timeout(240)
def test_a_module_that_loads_triton_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import triton.language\n\ndef test_it(): ...\n")
    found = collected(str(tmp_path / "test_it.py"))
    (line,) = (each for each in found.splitlines() if each.startswith("triton is loaded by "))
    assert line.endswith("test_it.py")  # relative to a folder that holds both, if there is one
