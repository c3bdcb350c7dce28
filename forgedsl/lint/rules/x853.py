"""X853 answer-breaks: a reward fails for an answer that every policy gives before it has learned.

    found = re.search("<answer>(.*)</answer>", response)
    return float(found.group(1) == target)                       # fires: no tag, found is None
    return float(found is not None and found.group(1) == target) # silent

`lint --deep` calls the reward with odd answers: an empty one, one of spaces, one without tags, one
of open tags, one in other scripts, and one of 50,000 characters. The rule fires for errors that are
never meant: an attribute or an item of None, a division by zero, an index that does not exist, a
score that is NaN or None. With `on_error = drop` the policy never learns that such answers are bad,
and a run whose answers fail too often ends (`max_failed`; ms-swift #8125). The rule does not report
an error that the program raises itself, or a number that cannot be read: `on_error` decides what
such an answer scores.
"""

from __future__ import annotations

from forgedsl.diagnostics import Label
from forgedsl.lint.deep_calls import NEVER_MEANT, called_rewards, split_error
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
KINDS = ("empty", "words", "space", "tags", "unicode", "long")


def check(view: View) -> Findings:
    for reward, calls in called_rewards(view):
        broken = [
            row.calls[kind] for row in calls.rows[:1] for kind in KINDS
            if kind in row.calls and _is_never_meant(row.calls[kind].error)
        ]  # fmt: skip
        if not broken or not calls.drops_errors:
            continue
        call = broken[0]
        error, at = split_error(call.error, reward.source)
        if at is not None and reward.source.text[at.start : at.end].lstrip().startswith("raise"):
            continue
        others = [f"also for {other.said}" for other in broken[1:]]
        yield finding(
            f"`{reward.reward.name}` fails for {call.said}: {error}",
            place_of(reward.reward, view),
            related=() if at is None else (Label(text="here", span=at),),
            notes=tuple(others),
            help="test what was found before it is used, and return the score of a wrong answer",
        )


def _is_never_meant(error: str) -> bool:
    return error.startswith(NEVER_MEANT) or "is not finite" in error or "returned None" in error
