"""What the checks would have caught in torchforge and TitanRL (language.md, section 9).

Each case is a program that gives the rule named in its first line; its corrected form is clean.
"""

from pathlib import Path

import pytest

from forgedsl.lint.engine import lint_file

CASES = sorted(p for p in (Path(__file__).parent / "cases").glob("*.forge") if "." not in p.stem)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_gives_its_rule(path):
    code = path.read_text("utf-8")[2:6]
    assert code in [d.code for d in lint_file(path).diagnostics]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_corrected_file_is_clean(path):
    corrected = path.with_suffix(".corrected.forge")
    assert [(d.code, d.message) for d in lint_file(corrected).diagnostics] == []


def test_there_is_a_case_for_every_rule_of_the_section():
    codes = {path.read_text("utf-8")[2:6] for path in CASES}
    assert {"A303", "L403", "T701", "L411", "P204", "D601", "A306"} <= codes
