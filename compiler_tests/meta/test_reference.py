"""docs/reference is what the compiler's own tables say: `python -m forgedsl.docs` writes it."""

from pathlib import Path

import pytest

from forgedsl.cli.commands import COMMANDS
from forgedsl.cli.options import options_of
from forgedsl.cli.reference import REFERENCES, reference
from forgedsl.operations.registry import METHODS
from forgedsl.reference import expressions, kinds
from forgedsl.schema import builtins
from forgedsl.schema.kinds import ALL_KINDS

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", REFERENCES)
def test_the_committed_reference_is_the_generated_one(name: str, request) -> None:
    path, text = FOLDER / f"{name}.md", reference(name)
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.read_text(encoding="utf-8") == text, "run `python -m forgedsl.docs`"


def test_nothing_else_lies_in_the_folder_of_references() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(REFERENCES)


def test_every_kind_is_described() -> None:
    assert set(kinds.SHAPES) == set(ALL_KINDS)


def test_every_statement_of_a_flow_is_described() -> None:
    methods = {name for names in METHODS.values() for name in names}
    assert methods - set(kinds.STATEMENTS) == set()


def test_every_function_of_expressions_is_described() -> None:
    assert set(expressions.MEANINGS) == set(builtins.FUNCTIONS)


def test_every_axis_and_field_is_described() -> None:
    assert set(expressions.AXES) == builtins.AXES
    fields = {*builtins.TRAINER_FIELDS, *builtins.ROLLOUT_FIELDS, *builtins.RUN_FIELDS}
    assert set(expressions.FIELDS) == fields


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_every_option_of_a_command_has_help(name: str) -> None:
    assert [option.shown for option in options_of(name) if not option.help] == []


def test_options_are_read_from_signatures() -> None:
    (out,) = [option for option in options_of("graph") if "--out" in option.names]
    assert (out.names, out.value) == (("-o", "--out"), "PATH")
