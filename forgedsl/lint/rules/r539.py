"""R539 flat-in-length: a reward that bounds a length is the same for all lengths.

    reward overlong(r: Rollout) -> f32 = -clamp(r.num_tokens - 1536 / 512, 0.0, 1.0)       # fires
    reward overlong(r: Rollout) -> f32 = -clamp((r.num_tokens - 1536) / 512, 0.0, 1.0)     # silent

Every answer of at least an eighth of `max_tokens` gets the same value. So the term hardly depends
on the length, and only shifts all scores. In most cases a pair of parentheses is missing (slime
#1134), or a limit was meant for another `max_tokens`. The rule looks at `clamp`, `min` and `max` of
sums with `num_tokens`. A test such as `r.num_tokens > 4` is silent.
"""

from forgedsl.ir.program import Function, RewardDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import flat_in_length, place_of, reward_interval
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names, walk

finding = rule(__doc__, "W")
BOUNDS = ("clamp", "min", "max")


def check(view: View) -> Findings:
    used = positive_rewards(view)
    for reward in view.program.rewards.values():
        value = flat_in_length(reward, view) if reward.name in used and _bounds(reward) else None
        whole = reward_interval(reward, view)
        if value is not None and whole is not None and not whole.is_point:  # else R501 reports it
            yield finding(
                f"`{reward.name}` bounds a number of tokens, and is {value:g} for all answers from "
                f"{(view.max_tokens or 0) // 8} to {view.max_tokens} tokens",
                place_of(reward, view),
                help="check the parentheses, `(r.num_tokens - soft) / tail`, and the limits",
            )


def _bounds(reward: RewardDecl) -> bool:
    """True if a reward bounds a sum that has a number of tokens in it."""
    body = reward.body
    for node in walk(body.statements) if isinstance(body, Function) else ():
        if isinstance(node, ast.Call) and node.function.text in BOUNDS:
            for each in (n for arg in node.args for n in walk(arg.value)):
                is_sum = isinstance(each, ast.Binary) and each.operator in ("+", "-")
                if is_sum and any(parts[-1] == "num_tokens" for parts in names(each)):
                    return True
    return False
