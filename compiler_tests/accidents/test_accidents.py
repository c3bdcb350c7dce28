"""Accidents on record, written as edits of shipped pipelines, give one message: the wanted one."""

import os

import pytest

from .corpus import accidents, found

DEEP = bool(os.environ.get("FORGE_DEEP"))
CASES = accidents()
SLICE = CASES if DEEP else CASES[::3]


def is_caught(case):
    return {code for code, _, _ in found(case.text, case.files)} == {case.code}


@pytest.mark.parametrize("case", SLICE, ids=lambda case: case.name)
def test_an_accident_gives_one_message_unless_it_is_marked_open(case):
    assert is_caught(case) != case.is_open


def test_every_accident_is_named_once():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
