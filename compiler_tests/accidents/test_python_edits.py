"""Random edits of environments and Python rewards: no right program is found harmful, and some of
the harmful edits are told."""

import os

import pytest

from .python_edits import ANSWERS, TARGET, all_edits, bases, harm, rates, verdict

DEEP = bool(os.environ.get("FORGE_DEEP"))
COUNT = 200 if DEEP else 40
REWARD = "def score(response, target):\n    return float(response.count(target) {} 1)\n"


@pytest.mark.full
def test_harmful_edits_are_told_and_harmless_ones_are_not():
    harmful, caught, harmless, false = rates([verdict(number) for number in range(COUNT)])
    print(f"{caught} of {harmful} harmful edits are told, {false} of {harmless} harmless ones")
    assert caught >= 0.1 * harmful
    assert false <= 0.02 * harmless


def test_the_bases_are_right_and_each_edit_is_another_program():
    assert len(bases()) > 20
    each = [(base.title, code) for base, _, code in all_edits()]
    assert len(each) > 500
    assert all(code != base.code for base, _, code in all_edits())


def test_the_oracle_finds_a_reward_that_pays_wrong_answers():
    right = "def score(response, target):\n    return float('>' + target + '<' in response)\n"
    assert TARGET in ANSWERS["right"]
    assert harm(right, "own.score") == ""
    assert harm(REWARD.format("!="), "own.score") == "a right answer is not paid more"
