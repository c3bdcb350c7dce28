"""The Python API tells what an argument should be, with the words to write."""

from __future__ import annotations

from pathlib import Path

import pytest

import forgedsl
from forgedsl import api
from forgedsl.errors import SourceError

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"overrides": "group=4"}, r'write a list, overrides=\["group=4"\], not \'group=4\''),
        ({"overrides": {"group": 4}}, "write a list, overrides="),
        ({"overrides": [4]}, "write a list, overrides=.*, not 4"),
        ({"overrides": 4}, "write a list, overrides=.*, not 4"),
        ({"set_files": "mine.toml"}, "write a list, set_files="),
        ({"profile": None}, '`profile` must be the name of a profile, or "none", not None'),
        ({"host": "8xH200"}, "`host` must be a forgedsl.api.Host"),
    ],
)
def test_an_argument_of_another_kind(given, said):
    with pytest.raises(TypeError, match=said):
        api.load(GRPO, **given)


def test_a_path_and_a_text():
    with pytest.raises(TypeError, match=r"`path` must be the path of a .forge file, not 3"):
        api.load(3)
    with pytest.raises(TypeError, match=r"`text` must be .forge text, not 3"):
        api.load_text(3)
    with pytest.raises(TypeError, match=r"`source` must be a path, .forge text, or a name"):
        api.load_functions(3)


def test_overrides_may_come_from_an_iterator():
    program = api.load(GRPO, profile="none", overrides=(f"group={n}" for n in (4, 6))).checked
    assert program.params["group"].value == 6


def test_mistakes_that_are_raised_have_their_place():
    with pytest.raises(SourceError) as raised:
        api.load_text("forge 1\nparam rows : int = 1\nparam b : int = row\n", "t.forge").checked  # noqa: B018
    assert str(raised.value) == "t.forge:3:17: F101: undefined name `row`; did you mean `rows`?"


def test_what_is_loaded_on_first_use_is_listed():
    assert "compile_loss" in dir(forgedsl)
