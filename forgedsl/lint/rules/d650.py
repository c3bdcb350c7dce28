"""D650 end-token-in-pattern: a reward searches for an end token, which no answer's text contains.

    reward form = rl.format_regex("(?s)<think>.*</think>.*<\\\\|im_end\\\\|>")      # fires
    reward form = rl.contains(text = "<|im_end|>")                               # fires
    reward form = rl.format_regex("(?s)<think>.*</think>.*")                     # silent

Special tokens are not part of the text that rewards see, so such a reward is 0 for every completion
(simple_GRPO #19, verl #715). End the pattern with `\\\\s*`. `r.truncated` is true if an answer did
not end.
"""

from forgedsl.families.registry import FAMILIES
from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
KEYS = ("pattern", "text")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        body = reward.body
        if not isinstance(body, Constructor) or not any(body.args.get(key) for key in KEYS):
            continue
        text = " ".join(str(body.args.get(key) or "") for key in KEYS).replace("\\", "")
        ends = {end for family in FAMILIES for end in family.ends if end in text}
        for end in sorted(ends)[:1]:
            yield finding(
                f"reward `{reward.name}` looks for `{end}`, which no answer has in its text",
                place_of(reward, view),
                help="leave it out: an answer's text ends before its end token; whether it was cut "
                "off is `r.truncated`",
            )
