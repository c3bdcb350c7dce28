"""X844 spelled-otherwise: the answer is changed before it is compared, and the target is not.

    return float(said.lower() == target)             # fires, if a target is `Paris`
    return float(said.lower() == target.lower())     # silent
    target = after(row.answer, "####")               # targets begin with a space
    return float(said.strip() == target)             # fires

The target then has characters that no answer can have, and the reward is 0 for all answers (rl
#3542). Change both sides in the same way. The rule reads the first row of a local file. It fires
only if the target there has a capital letter, a small letter or a space that the changed answer
cannot have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_target
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not python_rewards(view):
        return
    from forgedsl.lint.follow.programs import label, reward_flow

    target = first_target(view)
    for found in python_rewards(view) if target else ():
        flow = reward_flow(view, found)
        for event in flow.events if flow is not None else ():
            what, call = _changed(event, target)
            if what:
                yield finding(
                    f"reward `{found.reward.name}` compares an answer {what} with `{target}`, the "
                    "target of the first row, which is not changed",
                    place_of(found.reward, view),
                    related=(label(view, "here", event.file, event.node),),
                    help=f"`{call}` on both sides",
                )
                break


def _changed(event: Event, target: str) -> tuple[str, str]:
    """Return how the answer of a comparison was changed so that it never equals the target."""
    from forgedsl.lint.follow.values import (
        IS_TARGET,
        LOWERED,
        RAISED,
        READS_TARGET,
        RESPONSE,
        STRIPPED,
    )

    if event.kind != "compare" or not event.is_equality or len(event.values) != 2:
        return "", ""
    for said, wanted in (event.values, event.values[::-1]):
        is_pair = RESPONSE in said.all and READS_TARGET not in said.all
        if not is_pair or IS_TARGET not in wanted.labels:
            continue
        changes = (
            (LOWERED, target.lower(), "in small letters", ".lower()"),
            (RAISED, target.upper(), "in capitals", ".upper()"),
            (STRIPPED, target.strip(), "without spaces around it", ".strip()"),
        )
        for label, changed, what, call in changes:
            is_only = not {LOWERED, RAISED, STRIPPED} & wanted.labels
            if label in said.labels and is_only and changed != target:
                return what, call
    return "", ""
