"""X832 whole-response: the whole response is compared, and the prompt asks for tags.

    prompt = chat("Put the number inside <answer> tags.", row.question)
    return float(response.strip() == target)                   # fires
    return float(ANSWER.search(response)[1] == target)         # silent

A response that does what the prompt asks for has the tags in it, so it never equals the target: the
score is 0 for every good answer, and 1 only without the tags. Take the answer out of the tags
first. The comparison is found in helper functions, too.
"""

from __future__ import annotations

import re

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from, said_to
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
TAGS = re.compile(r"<(answer|final|solution|result)>|\\\\boxed")


def check(view: View) -> Findings:
    rewards = python_rewards(view)
    asked = [TAGS.search(said_to(dataset)) for dataset in drawn_from(view)] if rewards else []
    tag = next((found[0] for found in asked if found is not None), "")
    if not tag:
        return
    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import IS_RESPONSE, IS_TARGET

    for found in rewards:
        flow = reward_flow(view, found)
        for event in flow.events if flow is not None else ():
            if event.kind != "compare" or len(event.values) != 2:
                continue
            one, other = (value.labels for value in event.values)
            whole = (IS_RESPONSE in one and IS_TARGET in other) or (
                IS_RESPONSE in other and IS_TARGET in one
            )
            if whole and event.is_equality:
                yield finding(
                    f"reward `{found.reward.name}` compares the whole response with the target, "
                    f"and the prompt asks for `{tag}`",
                    place_of(found.reward, view),
                    related=(label(view, "here", event.file, event.node),),
                    help="take the answer out of the response first",
                )
                break
