"""Classes of mistakes in other spellings: a wrong program is told, and its right twin is not."""

import pytest

from .pairs import codes, pairs

PAIRS = list(pairs())
DEEP = [pair for pair in PAIRS if pair.is_deep]
STEP = 6
"""every so many pairs are linted in `make test`, all of them in `make test-all`"""


def check(pair, folder):
    wrong = codes(pair, pair.wrong, folder, pair.is_deep)
    assert (pair.code in wrong) == (pair.code != "open"), wrong
    assert codes(pair, pair.right, folder, pair.is_deep) == {}


@pytest.mark.parametrize("pair", [p for p in PAIRS if not p.is_deep][::STEP], ids=lambda p: p.name)
def test_it_is_told_and_its_twin_is_not(pair, tmp_path):
    check(pair, tmp_path)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_all_that_lint_tells(tmp_path):
    for pair in PAIRS:
        if not pair.is_deep:
            check(pair, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("pair", DEEP[::STEP], ids=lambda pair: pair.name)
def test_it_is_told_by_calls_and_its_twin_is_not(pair, tmp_path):
    check(pair, tmp_path)


def test_every_pair_is_named_once_and_its_programs_differ():
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    assert all(pair.wrong != pair.right for pair in PAIRS)
