"""What libraries print on fd 2 goes into a log; what Python says stays on standard error."""

import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from pathlib import Path
from forgedsl.runtime.stderr import native_stderr

with native_stderr(Path(sys.argv[1]) / "logs" / "controller.log"):
    os.write(2, b"greeting\\n")
    print("progress", file=sys.stderr)
os.write(2, b"afterwards\\n")
"""


def run(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    return done.stderr


def test_native_output_is_logged(tmp_path: Path) -> None:
    run(tmp_path)
    assert (tmp_path / "logs" / "controller.log").read_text() == "greeting\n"


def test_python_and_what_follows_stay_on_stderr(tmp_path: Path) -> None:
    assert run(tmp_path) == "progress\nafterwards\n"
