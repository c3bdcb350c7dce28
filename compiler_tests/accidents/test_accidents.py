"""Accidents on record, written as edits of shipped pipelines, give one message, the wanted one;
right programs give none."""

import os
import re

import pytest

from forgedsl.explain.codes import pages

from .corpus import PIPELINES, accidents, found, is_as_wanted, right, unseen
from .variations import variations

DEEP = bool(os.environ.get("FORGE_DEEP"))
VARIATIONS = 300
CASES, RIGHT = accidents(), right()
SHIPPED = sorted(PIPELINES.glob("*.forge"))
STEP = 1 if DEEP else 5


@pytest.mark.parametrize("case", CASES[::STEP], ids=lambda case: case.name)
def test_an_accident_gives_one_message_and_one_that_is_marked_open_none(case):
    assert is_as_wanted(case)


@pytest.mark.full
@pytest.mark.parametrize("case", RIGHT[::STEP], ids=lambda case: case.name)
def test_a_right_program_has_no_finding_above_information(case):
    assert found(case.text, case.files, case.is_deep) == []


@pytest.mark.parametrize("number", range(VARIATIONS if DEEP else 24))
def test_a_variation_that_changes_no_meaning_has_no_finding_above_information(number):
    assert found(variations(VARIATIONS)[number]) == []


def test_each_unseen_program_has_a_twin_and_both_can_be_made_of_their_pipeline():
    names = [case.name for case in unseen()]
    assert len(names) == 168
    wrong, twins = ([n.split()[1] for n in names if n.startswith(w)] for w in ("wrong", "twins"))
    assert sorted(wrong) == sorted(twins)


def test_every_program_is_named_once_and_unlike_the_others():
    programs = [*CASES, *RIGHT]
    assert len({case.name for case in programs}) == len(programs)
    assert len({(case.text, case.files) for case in programs}) == len(programs)


def test_the_page_of_accidents_has_the_counts_and_the_rules():
    text = (PIPELINES.parent / "docs/accidents.md").read_text("utf-8")
    caught = [case for case in CASES if not case.is_open]
    named = set(re.findall(r"\[([A-Z]\d{3})\]\(reference/rules.md#", text))
    assert len(caught) >= 0.95 * len(CASES)
    assert len(CASES) >= 200
    views = sum(1 + path.read_text("utf-8").count("\nprofile ") for path in SHIPPED)
    assert len(RIGHT) + views >= 300
    assert f"{len(SHIPPED)} shipped pipelines, {views} with their profiles" in text
    assert f"{len(caught)} of {len(CASES)} give it" in text
    assert f"{len(RIGHT)} right programs" in text
    assert f"{VARIATIONS} variations" in text
    assert {case.code for case in caught} <= named <= set(pages())
