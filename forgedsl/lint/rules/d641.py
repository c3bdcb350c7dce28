"""D641 stop-cuts-answer: a stop string removes a tag that a reward needs.

A stop string ends the completion and is not part of it. If a reward needs that tag, the reward is 0
for every completion (open-instruct #538 and #1041). Remove the stop string.

    sampling { stop = ["</answer>"], max_tokens = 512 }
    reward tags = rl.think_tags                          # fires: `</answer>` is never in the text
    sampling { stop = ["\nQuestion:"], max_tokens = 512 }     # silent

`math_equal` needs the closing tag around an answer, too. The rule also fires for an empty stop
string.
"""

from collections.abc import Mapping
from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View, place

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for service in view.samplers():
        stop = service.settings["sampling.stop"]
        texts = stop.value if isinstance(stop.value, list) else []
        if "" in texts:
            yield finding(
                "an empty stop string is in every answer, or in none",
                place(stop, service),
                help="leave it out: the model's end token ends an answer",
            )
        for text in texts:
            for reward in view.program.rewards.values() if text else ():
                body, args = reward.body, getattr(reward.body, "args", {})
                needed = _tags(getattr(body, "name", ""), args)
                needed += str(args.get("pattern") or args.get("text") or "")
                if isinstance(body, Constructor) and text in needed:
                    yield finding(
                        f"answers end before `{text}`, which `{reward.name}` looks for",
                        place(stop, service),
                        related=(Label(text="looks for it", span=place_of(reward, view)),),
                        help="leave it out of `stop`: the model's end token ends an answer",
                    )
                    break


def _tags(name: str, args: Mapping[str, Any]) -> str:
    """Return the tags that a reward reads."""
    if name == "think_tags":
        answer = "" if args["which"] == "any" else "<answer></answer>"
        return f"<{args['tag']}></{args['tag']}>{answer}"
    return "</answer>" if name == "math_equal" else ""
