"""X850 cheat-paid: a reward gives an answer that is not right as much as the right one.

    return float(target in response)                # fires: `1529` is rewarded where 52 is right
    return float(target in all_tags(response))      # fires: many answers, one of them right
    return float(last_tag(response) == target)      # silent

`lint --deep` calls the reward on rows of the data: with the right answer in the form that is
rewarded, with a wrong one, and with answers that a policy finds when it looks for reward: none at
all, a copy of the prompt, all numbers from 0 to 100, the target inside another number, several
answers one of which is right, every option, the target reversed, a number nearby, `nan`, Python
that gives the target, a wrong answer after many words. The rule fires if one of these gets as much
as the right answer on every row. Lists of answers were rewarded in Visual-RFT (#79).
"""

from __future__ import annotations

from forgedsl.lint.call_results import RIGHT, Call, RewardCalls, shorten
from forgedsl.lint.deep_calls import target_rewards
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
HELP = {
    "evaluated": "read the number, and never evaluate what the policy wrote",
    "empty": "return the lowest score if there is no answer",
    "blank": "return the lowest score if the place of the answer is empty",
    "copied": "look for the answer in `response` only, and compare all of it",
    "numbers": "take one number, and compare it: `float(found == target)`",
    "inside": "compare the whole answer: `found == target`, not `target in response`",
    "part": "compare the whole answer: `found == target`, not `found in target`",
    "negated": "keep the sign when the answer is read",
    "joined": "keep the decimal point when the answer is read",
    "mentioned": "take the last answer alone, and compare it",
    "denied": "compare the whole answer: `found == target`, not `target in found`",
    "options": "take one option, and return 0 for several",
    "spaced": "take one option, and return 0 for several",
    "repeated": "count an answer once",
    "among": "take one answer alone, and return 0 for several",
    "nan": "return the score of a right answer only where `abs(a - b) <= 1e-6` is true: no "
    "comparison with nan is true",
    "near": "compare more closely: a tenth is no rounding error",
    "reversed": "compare the characters in their order",
    "stuffed": "let words and length add less than a right answer, at most",
}
"""what to write, by kind of answer; the kind that shows the mistake most clearly comes first"""
BOTH = "reward the last answer alone, or return 0 if there are several"


def check(view: View) -> Findings:
    for reward, calls in target_rewards(view):
        if not calls.form:
            continue
        found = [kind for kind in HELP if calls.at_least_right(kind, more=kind == "repeated")]
        helps = [(calls.rows[0].calls[kind], HELP[kind]) for kind in found]
        if all(calls.at_least_right(kind) for kind in ("first", "last")):
            helps.append((calls.rows[0].calls["first"], BOTH))
        if not helps:
            continue
        (call, help_), *others = helps
        yield finding(
            f"`{reward.reward.name}` gives {_score(call)} to {call.said}, and {_right(calls)} to "
            "the right answer",
            place_of(reward.reward, view),
            notes=(
                f"{calls.rows[0].place}, target {calls.rows[0].target}: right `{_text(calls)}`, "
                f"same score for `{shorten(call.text)}`",
                *(f"also for {other.said}" for other, _ in others),
            ),
            help=help_,
        )


def _score(call: Call) -> str:
    return f"{call.score:.4g}"


def _right(calls: RewardCalls) -> str:
    return _score(calls.rows[0].calls[RIGHT])


def _text(calls: RewardCalls) -> str:
    return shorten(calls.rows[0].calls[RIGHT].text)
