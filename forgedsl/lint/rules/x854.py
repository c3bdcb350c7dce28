"""X854 score-changes: a reward gives the same answer another score when it is called again.

    return float(right) + 0.1 * (response not in SEEN)     # fires: another score the second time
    return sum(random.sample(passed, 3)) / 3               # fires: without `effects = [random]`
    return sum(passed) / len(passed)                       # silent

`lint --deep` calls the reward twice with each answer, and a third time in a new process, in another
order. If the scores differ, equal answers in a group get different advantages by luck, and a run
that is resumed does not repeat what it did (NeMo-Gym #2078). A reward that declares `random` is not
reported.
"""

from __future__ import annotations

from forgedsl.lint.call_results import shorten
from forgedsl.lint.deep_calls import called_rewards
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for reward, calls in called_rewards(view):
        change = calls.change
        if change is None or "random" in reward.reward.settings["effects"].value:
            continue
        yield finding(
            f"`{reward.reward.name}` gives {change.call.score:.4g} to {change.call.said}, and "
            f"{change.then:.4g} {change.when}",
            place_of(reward.reward, view),
            notes=(f"{change.place}: `{shorten(change.call.text)}`",),
            help="compute the score from `prompt`, `response` and `target` alone; if chance is "
            "meant, declare `effects = [random]`",
        )
