"""Completion: what is offered behind <TAB>, as bash, zsh and fish ask for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forgedsl.cli import completion
from forgedsl.cli.completion import COMPILING

PIPELINES = Path(__file__).parents[2] / "pipelines"


@pytest.fixture
def offered(monkeypatch):
    """The values offered at the end of a line; the folder has one file, grpo_math.forge."""
    monkeypatch.chdir(PIPELINES)

    def at_end(line: str) -> list[str]:
        words = line.split(" ")[1:]
        found = completion.candidates(words, len(words) - 1)
        return [c.value for c in found if c.value.startswith(words[-1])]

    return at_end


def test_commands(offered) -> None:
    assert offered("forgec re") == ["replay", "report"]


def test_options_of_a_command(offered) -> None:
    assert offered("forgec lint --set") == ["--set", "--set-file"]
    assert offered("forgec run --re") == ["--resume", "--record-batches"]


def test_choices_of_an_option(offered) -> None:
    assert offered("forgec graph grpo_math.forge --view d") == ["dataflow"]


def test_profiles_of_the_file(offered) -> None:
    assert offered("forgec run grpo_math.forge --profile gpu") == [
        "gpu1",
        "gpu2",
        "gpu4",
        "gpu_tiny",
    ]


def test_settings_with_the_value_in_force(offered) -> None:
    found = offered("forgec plan grpo_math.forge --set trainer.optimizer.l")
    assert found == ["trainer.optimizer.lr=1e-06"]


@pytest.mark.parametrize("command", [c for c in COMPILING if c != "explain"])
def test_settings_as_free_words(offered, command: str) -> None:
    assert offered(f"forgec {command} grpo_math.forge max_n") == ["max_new=1024"]


def test_settings_as_options(offered) -> None:
    assert offered("forgec plan grpo_math.forge --schedule.ste") == ["--schedule.steps=500"]


def test_values_of_a_setting_that_has_words() -> None:
    words = ["run", str(PIPELINES / "grpo_math.forge"), "--set", "trainer.device", "="]
    assert [c.value for c in completion.candidates(words, 4)] == ["gpu", "cpu", "auto"]


def test_codes_and_losses_to_explain(offered) -> None:
    assert offered("forgec explain L405") == ["L405"]
    assert "dapo" in offered("forgec explain dap")


def test_declarations_to_explain_with_a_file_behind_the_cursor(monkeypatch) -> None:
    monkeypatch.chdir(PIPELINES.parent)
    words = ["explain", "held", "pipelines/grpo_math.forge"]
    values = [c.value for c in completion.candidates(words, 1)]
    assert {"held_out", "held_out.every"} <= set(values)


def test_templates(offered) -> None:
    assert offered("forgec init --template d") == ["dapo", "distill", "dpo"]


def test_a_broken_file_offers_nothing_and_says_nothing(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.forge").write_text("model {")
    assert completion.candidates(["run", "x.forge", "--set", ""], 3) == []


def asked(shell: str, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """What the script of zsh or fish runs."""
    environment = {
        **os.environ, "_FORGEC_COMPLETE": f"complete_{shell}", "_FORGEC_ARGUMENTS": line, **more,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_zsh_gets_help_beside_the_values() -> None:
    assert asked("zsh", "forgec repl").stdout == (
        '_arguments \'*: :(("replay":"repeat a recorded optimizer step"))\'\n'
    )


def test_fish_asks_first_whether_there_is_anything() -> None:
    line, action = "forgec fmt pipel", "_FORGEC_FISH"
    assert asked("fish", line, **{action: "is-args"}).returncode == 1


SCRIPT = """
source <(forgec --show-completion bash)
COMP_WORDS=(forgec run grpo_math.forge --profile gpu) COMP_CWORD=4
_forgec_completion forgec
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_by_its_own_script() -> None:
    bin_folder = str(Path(sys.executable).parent)
    assert shutil.which("forgec", path=bin_folder)
    done = subprocess.run(
        ["bash", "-c", SCRIPT], cwd=PIPELINES, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["gpu1", "gpu2", "gpu4", "gpu_tiny"], done.stderr
