"""A module of tests that loads triton too early is an error (`loads_triton.py`).

The plugin looks at each run of the tests: this shows that it would see such a module.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(("folder", "errors"), [("meta", 1), ("property", 0)])
def test_a_module_that_loads_triton_before_the_kernels_is_an_error(
    tmp_path: Path, folder: str, errors: int
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "test_it.py").write_text("import triton.language\n\ndef test_it(): ...\n")
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "loads_triton",
             "-p", "no:cacheprovider", str(tmp_path)]  # fmt: skip
    done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.stdout.count("imports triton when it is collected") == errors, done.stdout
    assert done.returncode == (2 if errors else 0)
