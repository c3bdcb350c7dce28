"""X843 prompt-graded: a reward looks for the answer in the prompt and the response together.

    said = TAG.findall(prompt + response)[0]         # fires: the example of the prompt
    said = TAG.findall(response)[-1]                 # silent

A prompt that shows the form of an answer contains an example, `<answer> 42 </answer>`. The reward
finds this example first, so all answers of a group get the same score. A response without an answer
is graded by the example: the checker of Search-R1 had to skip it (Search-R1 #132). Look in the
response alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event, Value

finding = rule(__doc__, "W")
SEARCHES = ("search", "match", "findall", "finditer", "find", "rfind", "partition", "split")


def check(view: View) -> Findings:
    if not python_rewards(view):
        return
    from forgedsl.lint.follow.programs import label, reward_flow
    from forgedsl.lint.follow.values import PROMPT, RESPONSE

    for found in python_rewards(view):
        flow = reward_flow(view, found)
        for event in flow.events if flow is not None else ():
            text = _searched(event)
            if text is not None and {PROMPT, RESPONSE} <= text.all:
                yield finding(
                    f"reward `{found.reward.name}` looks for the answer in the prompt too",
                    place_of(found.reward, view),
                    related=(label(view, "here", event.file, event.node),),
                    help="look in the response alone",
                )
                break


def _searched(event: Event) -> Value | None:
    """Return the text that a call searches."""
    if event.kind != "call" or event.name.rpartition(".")[2] not in SEARCHES:
        return None
    if "compile()" in event.name:
        return event.values[0] if event.values else None
    if event.name.startswith("re."):
        return event.values[1] if len(event.values) > 1 else None
    return event.receiver
