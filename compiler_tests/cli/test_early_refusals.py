"""What can be refused at once is refused before anything slow begins; `-o` makes its folder."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

from forgedsl.cli import planning
from forgedsl.cli.app import app
from forgedsl.cli.commands import COMMANDS
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.run_lock import check_free, claim, release

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
PROGRAM = "import sys; from forgedsl.cli.main import main; main()"


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("certify", "nope.forge", "--against", "a.py:f"), "cannot read nope.forge: no such file"),
        (("certify", GRPO, "--against", "nope.py:f"), "no such file: nope.py"),
        (("certify", GRPO, "--against", "nope.py"), "--against is FILE.py:FUNCTION; not nope.py"),
        (("whatif", "RUN", "--with", "nope.forge"), "cannot read nope.forge: no such file"),
        (("sweep", "nope.forge", "lr=1"), "sweep: cannot read nope.forge: no such file"),
        (("run", GRPO, "--run-dir", "RUN"), "already contains a run"),
    ],
)
def test_nothing_slow_is_loaded(words: tuple[Any, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("{}")
    told = [str(tmp_path) if word == "RUN" else str(word) for word in words]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "forgedsl", *told],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr
    assert "forgedsl.plan" not in done.stderr
    assert "| torch" not in done.stderr


def test_a_run_folder_is_refused_before_the_file_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the file was compiled")

    monkeypatch.setattr(planning, "compile_file", never)
    (tmp_path / "a").touch()
    done = invoke("run", GRPO, "--run-dir", tmp_path / "a")
    assert (done.exit_code, done.stderr) == (
        2, f"forgec run: the run folder {tmp_path / 'a'} is a file\n"
    )  # fmt: skip


def test_a_folder_of_another_process_is_in_use(tmp_path: Path) -> None:
    check_free(tmp_path)
    claim(tmp_path)
    try:
        check_free(tmp_path)  # this process has it
        code = (
            "import sys, pathlib; from forgedsl.cli.run_lock import check_free\n"
            "check_free(pathlib.Path(sys.argv[1]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
    finally:
        release(tmp_path)
    assert f"{UsageError.__name__}: {tmp_path} is in use by process" in done.stderr
    check_free(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", GRPO, "--profile", "cpu", "-o", "OUT/plan.json"),
        ("graph", GRPO, "--profile", "cpu", "-o", "OUT/graph.txt"),
        ("lock", GRPO, "--profile", "cpu", "-o", "OUT/a.lock"),
        ("build", GRPO, "--profile", "cpu", "--emit", "job", "-o", "OUT"),
        ("doc", "dapo", "-o", "OUT/dapo.md"),
    ],
)
def test_the_folder_of_an_output_is_made(words: tuple[Any, ...], tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = invoke(*(str(word).replace("OUT", str(out)) for word in words))
    assert done.exit_code == 0, done.output
    assert any(out.iterdir())


WITH_FORMAT = [
    name
    for name, module, _ in COMMANDS
    if any(
        "--format" in a.option_strings for a in importlib.import_module(module).parser()._actions
    )
]


@pytest.mark.parametrize("name", WITH_FORMAT)
def test_an_unknown_format_is_answered_alike(name: str) -> None:
    done = invoke(name, "a", "--format", "xml")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"forgec {name}: --format must be one of ")
    assert f", not `xml`; see `forgec {name} --help`" in done.stderr
