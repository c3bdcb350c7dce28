"""What libraries print on fd 2 goes into a log; what Python says stays on standard error."""

import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from pathlib import Path
from forgedsl_runtime.stderr import native_stderr

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


GONE = """
import sys
from pathlib import Path
from forgedsl_runtime.stderr import native_stderr

with native_stderr(Path(sys.argv[1]) / "logs" / "controller.log"):
    sys.stdin.read()
    for step in range(3):
        print(f"step {step}", file=sys.stderr, flush=True)
print("went on to its end")
"""


def test_a_standard_error_that_goes_away_costs_no_run(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", GONE, str(tmp_path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stderr is not None
    run.stderr.close()  # as `head` and a pager that is left do
    run.stdin.close()
    assert run.stdout.read() == "went on to its end\n"
    assert run.wait(60) == 0


def test_a_standard_error_on_a_full_disk_costs_no_run(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", GONE, str(tmp_path)], stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=full, timeout=60, check=True,
        )  # fmt: skip
    assert done.stdout == "went on to its end\n"
