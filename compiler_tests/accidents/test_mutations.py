"""Random edits of shipped pipelines: what a small bandit finds harmful, lint tells."""

import os

import pytest

from .bandit import damage, outcome
from .mutations import BASES, COUNT, all_edits, base, rates, trained, verdict

DEEP = bool(os.environ.get("FORGE_DEEP"))
PART = 100 if DEEP else 6


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, COUNT if DEEP else PART, PART))
def test_most_harmful_edits_are_told_and_few_harmless_ones(first):
    verdicts = [verdict(number) for number in range(first, first + PART)]
    _, harmful, caught, harmless, false = rates(verdicts)
    print(f"{caught} of {harmful} harmful edits are told, {false} of {harmless} harmless ones")
    assert caught >= 0.85 * harmful
    assert false <= 0.1 * harmless + 1


def test_there_are_a_thousand_edits_each_once():
    assert len(set(all_edits())) == COUNT == 1000


@pytest.mark.full
def test_no_pipeline_is_harmed_by_nothing():
    names = BASES if DEEP else BASES[:2]
    assert all(trained(name).rise > 0 for name in names)
    assert [damage(trained(name), outcome(base(name))) for name in names] == [""] * len(names)


def test_a_lost_minus_sign_is_harmful():
    assert damage(trained("cispo_math"), outcome(base("cispo_math").replace("-weight", "weight")))


def test_another_normalizer_is_harmless():
    other = base("cispo_math").replace("minimize token_mean", "minimize seq_mean")
    assert not damage(trained("cispo_math"), outcome(other))
