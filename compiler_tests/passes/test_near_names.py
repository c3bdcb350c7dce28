"""What is said about a misspelt block, judge, setting or path: one finding, with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.explain.provenance import suggestions
from forgedsl.lower.paths import missing_file_help
from forgedsl.shipped import shipped_root

GRPO = Path(__file__).parents[2] / "pipelines/grpo_math.forge"


def said(folder: Path, old: str, new: str) -> tuple[str, str, str, str]:
    """Code, message, words and help of the one finding of GRPO with a change."""
    text = GRPO.read_text()
    assert old in text
    path = folder / "a.forge"
    path.write_text(text.replace(old, new, 1))
    (found,) = api.load(path, profile="none").reporter
    words = path.read_text()[found.span.start : found.span.end]
    return found.code, found.message, words, found.help


def test_a_misspelt_block_is_one_finding(tmp_path: Path) -> None:
    assert said(tmp_path, "sampling {", "samplng {") == (
        "F103", "vllm `generator` has no settings `samplng`", "samplng", "did you mean `sampling`?",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "help_text"),
    [
        ("name = adamw", "did you mean `kind`?"),
        ("foo = 3", "known are `kind`, `lr`, `betas`, `eps`, `weight_decay`, "),
    ],
)
def test_the_settings_of_a_block_are_listed(tmp_path: Path, name: str, help_text: str) -> None:
    code, _, word, help_ = said(tmp_path, "optimizer { ", f"optimizer {{ {name}, ")
    assert (code, word) == ("F103", name.split()[0])
    assert help_.startswith(help_text)


@pytest.mark.parametrize(
    ("name", "help_text"),
    [
        ("judge", "declare the judge: `service judge : vllm(MODEL) { ... }`"),
        ("genrator", "did you mean `generator`?"),
    ],
)
def test_a_judge_that_is_not_declared(tmp_path: Path, name: str, help_text: str) -> None:
    reward = f'reward near = {name}.score(prompt = "{{response}}")\n\nflow train {{'
    found = said(tmp_path, "flow train {", reward)
    assert found == ("F101", f"undefined service `{name}`", name, help_text)


def test_a_suggested_path_has_its_folder(tmp_path: Path) -> None:
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards/mine.py").touch()
    line = 'import "std/rl" as rl'
    found = said(tmp_path, line, f'{line}\nimport python "rewards/min.py" as my')
    assert (found[0], found[3]) == ("F115", "did you mean `rewards/mine.py`?")
    shipped = "data/arithmetic.json"
    help_text = missing_file_help(shipped_root() / shipped, f"forgedsl:{shipped}")
    assert help_text.startswith("did you mean `forgedsl:data/arithmetic.jsonl`")


def test_a_function_of_the_file_is_suggested() -> None:
    program = api.load(GRPO, profile="none").program
    assert program is not None
    assert suggestions("grpp", program) == "did you mean `grpo`?"
