"""D650 end-token-in-pattern: a reward searches for an end token, which no answer's text contains.

    reward form = rl.format_regex("(?s)<think>.*</think>.*<\\\\|im_end\\\\|>")      # fires
    reward form = rl.contains(text = "<|im_end|>")                               # fires
    reward form = rl.format_regex("(?s)<think>.*</think>.*")                     # silent

    response.endswith("<|im_end|>")                                  # fires, in a Python reward
    response.removesuffix("<|im_end|>")                              # silent

Special tokens are not part of the text that rewards see, so such a reward is 0 for every completion
(simple_GRPO #19, verl #715). End the pattern with `\\\\s*`. `r.truncated` is true if an answer was
cut off before its end.
"""

import re

from forgedsl.families.registry import end_tokens
from forgedsl.ir.program import Constructor, Function
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

finding = rule(__doc__, "D")
KEYS = ("pattern", "text")
OPTIONAL = r"\((\?:)?[^()]*\)[?*]|\((\?:)?[^()]*\|\s*\$?\)|\((\?:)?\s*\$?\|[^()]*\)"
"""parts of a pattern that need not match"""
HELP = (
    "leave it out: an answer's text ends before its end token; whether it was cut off is "
    "`r.truncated`"
)


def check(view: View) -> Findings:
    known = sorted(end_tokens())
    for reward in view.program.rewards.values():
        body, texts = reward.body, list[str]()
        if isinstance(body, Constructor):
            texts = [str(body.args.get(key) or "") for key in KEYS]
        elif isinstance(body, Function):
            nodes = walk(body.statements)
            texts = [node.value for node in nodes if isinstance(node, ast.String)]
        text = " ".join(texts)
        for end in [end for end in known if _needs(text, end)][:1]:
            yield finding(
                f"reward `{reward.name}` looks for `{end}`, which no answer has in its text",
                place_of(reward, view),
                help=HELP,
            )
    for found in python_rewards(view):
        from forgedsl.lint.python_bodies import body_of  # most programs have no Python

        code = body_of(found)
        sought = ((end, *each) for end in known for each in code.searched_texts(end))
        for end, node, text in sought:
            if not _needs(text, end):
                continue
            yield finding(
                f"`{found.reward.name}` looks for `{end}`, which no answer has in its text",
                found.at(node),
                help=HELP,
            )
            break


def _needs(pattern: str, end: str) -> bool:
    """True if a pattern has an end token in a part that must match."""
    if end not in pattern.replace("\\", ""):
        return False
    return end in re.sub(OPTIONAL, "", pattern).replace("\\", "")
