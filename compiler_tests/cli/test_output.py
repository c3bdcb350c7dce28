"""Output that cannot be written: exit 2 with the place and the cause, and no word of a bug; a
reader that has gone and Ctrl-C have codes of their own."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forgedsl.cli.main import main
from forgedsl.source import SourceFile

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


@pytest.mark.parametrize(
    "words", ["--help", "fmt --help", f"graph {SUMS}", f"lint {SUMS} --select ALL; "]
)
def test_a_full_standard_output_is_named(words: str, tmp_path: Path) -> None:
    words = words.removesuffix("; ")
    code, said = shell(f"{words} > /dev/full", tmp_path)
    assert (code, said) == (
        2, "forgec: cannot write standard output: No space left on device\n",
    )  # fmt: skip


@pytest.mark.parametrize("words", ["--help", "--version", "lint --help", f"graph {SUMS}"])
def test_a_reader_that_has_gone_is_no_bug(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*FORGEC.split(), *words.split()], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


ENDED = """
from forgedsl.cli.main import main
from forgedsl_runtime import launch
launch.run = lambda *given, **more: 0  # it has trained, and all is saved
main()
"""


@pytest.mark.parametrize("output", ["gone", "/dev/full"])
def test_a_run_that_is_done_ends_with_0_though_nobody_reads_its_summary(
    output: str, tmp_path: Path
) -> None:
    read, write = os.pipe()
    if output != "gone":
        os.dup2(os.open(output, os.O_WRONLY), write)
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", ENDED, "run", SUMS, "--quiet"], cwd=tmp_path,
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    os.close(write)
    said = "warning: the summary could not be printed: No space left on device\n"
    assert (done.returncode, done.stderr) == (0, said if output != "gone" else "")
    assert list(tmp_path.glob("runs/*/report.html"))


def test_a_run_whose_folder_was_moved_has_no_bug(tmp_path: Path) -> None:
    code = ENDED.replace("more: 0", "more: shutil.move('r', 's') and 5").replace(
        "from", "import shutil\nfrom", 1
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", SUMS, "--quiet", "--run-dir", "r"], cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == "no report and no summary: r has been removed\n"


def test_a_closed_standard_output_is_said(tmp_path: Path) -> None:
    assert shell(f"lint {SUMS} >&-", tmp_path) == (
        2, "forgec: standard output is closed; redirect it to a file or /dev/null\n",
    )  # fmt: skip


def test_messages_stay_out_of_the_output_where_standard_error_is_closed(tmp_path: Path) -> None:
    shell("lint nothing.forge --format json > found.json 2>&-", tmp_path)
    assert json.loads((tmp_path / "found.json").read_text())


@pytest.mark.parametrize(
    "command", ["lint", "plan", "sim", "build -o x", "graph", "doc", "run", "fmt"]
)
def test_ctrl_c_is_said_in_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SourceFile, "__init__", press)
    monkeypatch.setattr("sys.argv", ["forgec", *command.split(), str(SUMS)])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err == "forgec: interrupted\n"


PRESSED = """
import sys


class Press:
    def find_spec(self, name, path, target=None):
        if name == "forgedsl.cli.main":
            raise KeyboardInterrupt


sys.meta_path.insert(0, Press())
from {module} import {name}
{name}()
"""


def test_ctrl_c_while_forgec_is_being_imported_is_one_line() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    module, _, name = project["project"]["scripts"]["forgec"].partition(":")
    code = PRESSED.format(module=module, name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "forgec: interrupted\n")
