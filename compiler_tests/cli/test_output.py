"""Output that cannot be written: exit 2 with the place and the cause, and no word of a bug."""

import subprocess
import sys
from pathlib import Path

import pytest

FORGEC = f"{sys.executable} -m forgedsl.cli.main"
SUMS = Path(__file__).parents[2] / "pipelines" / "sft_math.forge"


def shell(words: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {FORGEC} {words}"], cwd=cwd, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        f"graph {SUMS} -o file/x.svg --format svg",
        f"build {SUMS} -o file/x",
        f"doc {SUMS} -o file/x",
        f"lock {SUMS} -o file/x.lock",
        f"plan {SUMS} -o file/plan.json",
    ],
)
def test_a_path_that_cannot_be_written_is_named(words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    code, said = shell(words, tmp_path)
    assert (code, "internal error" in said) == (2, False), said
    assert "cannot write file" in said
    assert "Not a directory" in said or "File exists" in said


@pytest.mark.parametrize("words", ["--help", f"graph {SUMS}", f"lint {SUMS} --select ALL; "])
def test_a_full_standard_output_is_named(words: str, tmp_path: Path) -> None:
    words = words.removesuffix("; ")
    code, said = shell(f"{words} > /dev/full", tmp_path)
    assert (code, said) == (
        2, "forgec: cannot write standard output: No space left on device\n",
    )  # fmt: skip


def test_a_reader_that_has_gone_is_no_bug(tmp_path: Path) -> None:
    code, said = shell(f"graph {SUMS} --format json | true", tmp_path)
    assert (code, said) == (141, "")
