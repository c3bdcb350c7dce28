"""X855 spelling-unpaid: the right answer gets no reward if it is spelled a little differently.

    return float(tag(response) == target)           # fires: `<answer> 42 </answer>` gets 0
    return float(tag(response).strip() == target)   # silent

`lint --deep` calls the reward with the right answer between spaces and, if it is a number above
999, with a separator: `1,234`. Models write both, whatever the prompt says, and these answers count
as wrong (pytorch/rl #3542). Information only: the prompt may forbid the spelling.
"""

from __future__ import annotations

from forgedsl.lint.call_results import RIGHT, SAME, WRONG, CalledRow, shorten
from forgedsl.lint.deep_calls import target_rewards
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "I")
HELP = {
    "padded": "`strip()` the answer before it is compared",
    "inner": "`strip()` the answer before it is compared",
    "separated": 'remove the separators before the number is read: `.replace(",", "")`',
}


def check(view: View) -> Findings:
    for reward, calls in target_rewards(view):
        if not calls.form:
            continue
        missed = [row.calls[kind] for kind in HELP for row in calls.rows if _unrewarded(row, kind)]
        if missed:
            call = missed[0]
            yield finding(
                f"`{reward.reward.name}` gives {call.score:.4g}, as for a wrong answer, to the "
                f"right answer with {call.said}",
                place_of(reward.reward, view),
                notes=(f"the answer: `{shorten(call.text)}`",),
                help=HELP[call.kind],
            )


def _unrewarded(row: CalledRow, kind: str) -> bool:
    """True if this spelling of the right answer gets no more than a wrong answer."""
    least, most, mine = row.score(WRONG), row.score(RIGHT), row.score(kind)
    return None not in (least, most, mine) and mine <= least + SAME < most  # type: ignore[operator]
