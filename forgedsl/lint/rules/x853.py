"""X853 answer-breaks: a reward fails for an answer that every policy gives before it has learned.

    found = re.search("<answer>(.*)</answer>", response)
    return float(found.group(1) == target)                       # fires: no tag, found is None
    return float(found is not None and found.group(1) == target) # silent

    return float(float(response) == float(target))   # fires: every answer in words is a ValueError
    return "no answer"                               # fires: a text is no score

`lint --deep` calls the reward with odd answers: an empty one, one of spaces, one without tags, one
of open tags, one in other scripts, and one of 50,000 characters. The rule fires for errors that are
never meant: an attribute or an item of None, a division by zero, an index that does not exist, a
score that is NaN or None. With `on_error = drop` the policy never learns that such answers are bad,
and a run whose answers fail too often ends (`max_failed`; ms-swift #8125). The rule also fires for
a score that is no number, whatever the answer and `on_error`, and if all odd answers fail. It does
not report an error that the program raises itself, or a number that cannot be read in some of them:
`on_error` decides what such an answer scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.diagnostics import Diagnostic, Label
from forgedsl.lint.call_results import Call
from forgedsl.lint.deep_calls import NEVER_MEANT, called_rewards, split_error
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
KINDS = ("empty", "words", "space", "tags", "unicode", "long")
WORDS = "words"
NO_NUMBER = "expected a number"
"""part of the error of a reward that returns a text, None or a coroutine"""


def check(view: View) -> Findings:
    for reward, calls in called_rewards(view):
        kinds = calls.rows[0].calls if calls.rows else {}
        odd = [kinds[kind] for kind in KINDS if kind in kinds]
        broken = [call for call in odd if _is_never_meant(call.error)] if calls.drops_errors else []
        broken = broken or [call for call in calls.all if NO_NUMBER in call.error][:1]
        if broken and not _is_raised(broken[0], reward):
            yield _finding(view, reward, broken)
        elif not broken and _is_strict(reward, odd):
            yield _finding(view, reward, odd)


def _finding(view: View, reward: PythonReward, broken: Sequence[Call]) -> Diagnostic:
    call, *others = broken
    error, at = split_error(call.error, reward.source)
    return finding(
        f"`{reward.reward.name}` fails for {call.said}: {error}",
        place_of(reward.reward, view),
        related=() if at is None else (Label(text="here", span=at),),
        notes=tuple(f"also for {other.said}" for other in others),
        help="return a number on every path"
        if NO_NUMBER in error
        else "test what was found before it is used, and return the score of a wrong answer"
        if _is_never_meant(error)
        else "return the score of a wrong answer where the answer cannot be read: too many "
        "failures end a run (`max_failed`)",
    )


def _is_never_meant(error: str) -> bool:
    return error.startswith(NEVER_MEANT) or "is not finite" in error or NO_NUMBER in error


def _is_raised(call: Call, reward: PythonReward) -> bool:
    """True if a `raise` of the reward's file is what failed."""
    _, at = split_error(call.error, reward.source)
    return at is not None and reward.source.text[at.start : at.end].lstrip().startswith("raise")


def _is_strict(reward: PythonReward, odd: Sequence[Call]) -> bool:
    """True if every odd answer fails, one in words too, and none by a `raise` of the reward."""
    failed = all(call.error and not _is_raised(call, reward) for call in odd)
    return failed and any(call.kind == WORDS for call in odd)
