"""The settings of a flow's syncs from outside: `sync.every`, and `sync.GENERATOR.every` of one."""

from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.explain.provenance import addresses

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
SYNC = "  sync trainer -> generator { every = 1, overlap = true, on_swap = recompute }\n"


def every(path: Path = GRPO, **options: object) -> list[int]:
    loaded = api.load(path, **{"profile": "none", **options})
    assert list(loaded.reporter) == []
    return [step.settings["every"].value for step in loaded.program.flow if step.op == "sync"]


@pytest.mark.parametrize("name", ["sync.every", "sync.generator.every"])
def test_an_override_and_a_set_file(name: str, tmp_path: Path) -> None:
    assert every() == [1]
    assert every(overrides=[f"{name}=4"]) == [4]
    block, _, key = name.rpartition(".")
    settings = tmp_path / "s.toml"
    settings.write_text(f"[{block}]\n{key} = 3\n")
    assert every(set_files=[settings]) == [3]
    assert every(set_files=[settings], overrides=[f"{name}=4"]) == [4]


@pytest.mark.parametrize(
    "said", ["sync.every = 4", "sync { every = 4 }", "sync.generator.every = 4"]
)
def test_a_profile(said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.forge"
    path.write_text(GRPO.read_text() + f"\nprofile slow {{\n  {said}\n}}\n")
    assert every(path, profile="slow") == [4]
    assert every(path, profile="none") == [1]


@pytest.mark.parametrize(
    ("override", "code", "help_text"),
    [
        ("sync.evry=4", "F103", "did you mean `every`?"),
        ("sync.gen.every=4", "F101", "known are `sync.generator`"),
        ("sync=4", "F113", "`sync.NAME = ...`"),
        ("every=4", "F101", "sync.every"),
        ("sync.every=abc", "F109", ""),
    ],
)
def test_mistakes(override: str, code: str, help_text: str) -> None:
    (found,) = api.load(GRPO, profile="none", overrides=[override]).reporter
    assert found.code == code
    assert help_text in (found.help or "")


def test_the_address_is_offered_once() -> None:
    program = api.load(GRPO, profile="none").program
    found = [a.path for a in addresses(program) if a.path.startswith("sync.")]
    assert "sync.every" in found
    assert "sync.generator.every" not in found
