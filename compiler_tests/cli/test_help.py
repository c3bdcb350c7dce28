"""`--help` of every command: reviewed as one text, with examples that the commands take."""

import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.cli.commands import COMMANDS

NAMES = [name for name, _, _ in COMMANDS]


def shown(*words: str) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_help_is_the_reviewed_text(golden) -> None:
    golden("help.txt", "\n".join([shown("--help"), *(shown(name, "--help") for name in NAMES)]))


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_a_line_that_the_parser_takes(name: str) -> None:
    parser = import_module({n: m for n, m, _ in COMMANDS}[name]).parser()
    lines = [part.strip() for line in parser.epilog.splitlines()[1:] for part in line.split("&&")]
    calls = [line for line in lines if f"forgec {name} " in f"{line} "]
    assert calls
    for call in calls:
        words = shlex.split(call.partition("  ")[0].partition(">")[0].partition("<")[0])
        parser.parse(words[words.index("forgec") + 2 :])


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["--version"]])
def test_forgec_alone(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == (0 if words else 2)
    assert "forgec" in done.stdout


def test_no_option_library_is_loaded() -> None:
    program = (
        "import forgedsl.cli.main, sys; print({'typer', 'click', 'pydantic'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_once(shell: str, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    for _ in range(2):
        code = "from forgedsl.cli import start; start()"
        done = subprocess.run(
            [sys.executable, "-c", code, "--install-completion"], env=env, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
    path = Path(done.stdout.split(" completion in ")[1].split(";")[0])
    assert "_FORGEC_COMPLETE" in path.read_text(encoding="utf-8")
    lines = [line for rc in tmp_path.glob(".*rc") for line in rc.read_text().splitlines() if line]
    assert len(lines) == (0 if shell == "fish" else 1)
