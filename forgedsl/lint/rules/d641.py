"""D641 stop-cuts-answer: a stop string takes away what a reward looks for.

A stop string ends the completion and is no part of it. Where it is a tag that a reward needs, the
reward is 0 for every answer (open-instruct #538 and #1041).

    sampling { stop = ["</answer>"], max_tokens = 512 }
    reward tags = rl.think_tags                          # fires: `</answer>` is never in the text
    sampling { stop = ["\nQuestion:"], max_tokens = 512 }     # silent

An answer that `math_equal` reads needs its closing tag too. It fires too for an empty text.
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
    """The tags that a reward reads."""
    if name == "think_tags":
        answer = "" if args["which"] == "any" else "<answer></answer>"
        return f"<{args['tag']}></{args['tag']}>{answer}"
    return "</answer>" if name == "math_equal" else ""
