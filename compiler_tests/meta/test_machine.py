"""A failed run says on which CPU, and with which settings; a green one does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.parametrize("right", [True, False])
def test_a_failed_run_says_what_its_numbers_depend_on(tmp_path: Path, right: bool) -> None:
    (tmp_path / "conftest.py").symlink_to(CONFTEST)
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    assert {right}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    )  # fmt: skip
    said = all(
        word in done.stdout for word in ("cpu: ", "instructions: ", "ONEDNN_MAX_CPU_ISA: AVX2")
    )
    assert (said, done.returncode) == ((False, 0) if right else (True, 1))
