"""Accidents on record, written as edits of shipped pipelines, give one message: the wanted one."""

import os
import re

import pytest

from forgedsl.explain.codes import pages
from forgedsl.lint.engine import lint_file

from .corpus import PIPELINES, accidents, found, right

DEEP = bool(os.environ.get("FORGE_DEEP"))
CASES = accidents()
SLICE = CASES if DEEP else CASES[::3]


def is_caught(case):
    return {code for code, _, _ in found(case.text, case.files)} == {case.code}


@pytest.mark.parametrize("case", SLICE, ids=lambda case: case.name)
def test_an_accident_gives_one_message_unless_it_is_marked_open(case):
    assert is_caught(case) != case.is_open


@pytest.mark.parametrize("case", right(), ids=lambda case: case.name)
def test_a_right_program_has_no_finding_above_information(case):
    assert found(case.text, case.files) == []


def test_every_accident_is_named_once():
    names = [case.name for case in (*CASES, *right())]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.forge")), ids=lambda path: path.stem)
def test_a_shipped_pipeline_has_no_finding_above_information(path):
    told = [(d.code, d.message) for d in lint_file(path).diagnostics if d.severity != "info"]
    assert told == []


def test_the_page_of_accidents_has_the_counts_and_the_rules():
    text = (PIPELINES.parent / "docs/accidents.md").read_text("utf-8")
    caught = [case for case in CASES if not case.is_open]
    named = set(re.findall(r"\[([A-Z]\d{3})\]\(reference/rules.md#", text))
    assert f"{len(caught)} of {len(CASES)} give it" in text
    assert {case.code for case in caught} <= named <= set(pages())
