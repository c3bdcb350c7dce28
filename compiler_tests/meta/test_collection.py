"""A module of tests that loads triton too early is an error in each run of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.parametrize(("folder", "early"), [("meta", True), ("property", False)])
def test_a_module_that_loads_triton_before_the_kernels_is_an_error(
    tmp_path: Path, folder: str, early: bool
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "test_it.py").write_text("import triton.language\n\ndef test_it(): ...\n")
    (tmp_path / "conftest.py").symlink_to(CONFTEST)
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ("imports triton when it is collected" in done.stdout) == early, done.stdout
    assert done.returncode == (2 if early else 0)
