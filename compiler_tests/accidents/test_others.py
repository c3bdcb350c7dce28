"""Wrong programs by another hand: which are told, and that their right twins are not."""

import re
from collections import Counter
from pathlib import Path

import pytest

from forgedsl.lint.engine import lint_file

FOLDER = Path(__file__).parent / "others"
PAIRS = sorted(path.stem for path in FOLDER.glob("*.txt") if path.stem[0].isdigit())
STEP = 12
"""every so many pairs are linted in `make test`, all of them in `make test-all`"""


def listed(name):
    return set((FOLDER / f"{name}.txt").read_text("utf-8").split())


def codes(path):
    found = lint_file(path).diagnostics
    return Counter(d.code for d in found if d.severity != "info")


def findings(name, folder):
    """Codes of the wrong program that its twin does not have, and those of the twin."""
    note, *files = re.split(r"^=== ", (FOLDER / f"{name}.txt").read_text("utf-8"), flags=re.M)
    assert "\nhalf: " in note
    for file in files:
        path, _, text = file.partition("\n")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    wrong, right = (codes(folder / f"{each}.forge") for each in ("wrong", "right"))
    return wrong - right, right


@pytest.mark.parametrize("name", PAIRS[::STEP])
def test_what_was_told_is_told_and_its_twin_is_not(name, tmp_path):
    wrong, right = findings(name, tmp_path)
    assert bool(wrong) == (name in listed("told")), wrong
    assert bool(right) == (name in listed("twins")), right


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_lists_are_those_of_all_pairs(tmp_path, request):
    told, twins = [], []
    for name in PAIRS:
        wrong, right = findings(name, tmp_path / name)
        told += [name] if wrong else []
        twins += [name] if right else []
    if request.config.getoption("--update-golden"):
        (FOLDER / "told.txt").write_text("\n".join(told) + "\n", "utf-8")
        (FOLDER / "twins.txt").write_text("\n".join(twins) + "\n", "utf-8")
    assert set(told) == listed("told")
    assert set(twins) == listed("twins")
