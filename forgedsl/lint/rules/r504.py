"""R504 truncation-unset: the rubric does not state the score of a truncated completion.

A completion that reaches `max_tokens` is cut off. It usually has no answer, but may have a right
one by chance. Scored like any other, it teaches the policy to ramble. See TRL #3248.

    rubric score { score = correct }                           # fires
    rubric score { score = correct, on_truncated = 0.0 }       # silent

    score = form(rollout), of reward form = rl.format_regex("(?s)<answer>.*")        # fires

Where a reward is the score itself, without a rubric, the rule fires if an answer without an end can
be rewarded: for `rl.contains(text = ...)` without a closing tag, for a pattern that ends with `.*`,
and for a body that reads neither `truncated` nor `rewards`. `on_truncated = 0.0` gives a truncated
completion a fixed score. To score it like any other, write `on_truncated = none` and a suppression
with a reason.
"""

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Function, RewardDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    program = view.program
    used = {step.receiver for step in program.flow if Role.SCORES in step.roles}
    for rubric in program.rubrics.values():
        if rubric.name in used and rubric.settings["on_truncated"].value is None:
            yield finding(
                f"rubric `{rubric.name}` does not say what a truncated completion scores",
                rubric.name_span,
                help="`on_truncated = 0.0`",
            )
    for step in program.flow:
        reward = program.rewards.get(step.receiver) if Role.SCORES in step.roles else None
        if reward is not None and _pays_the_cut(view, reward):
            yield finding(
                f"`{reward.name}` is the score itself, without a rubric, so a truncated completion "
                "is scored like any other",
                step.span,
                related=(Label(text="the reward", span=place_of(reward, view)),),
                help=f"`rubric grade {{ score = {reward.name}, on_truncated = 0.0 }}`",
            )


def _pays_the_cut(view: View, reward: RewardDecl) -> bool:
    """True if this reward can be above 0 for an answer that was cut off."""
    body = reward.body
    if isinstance(body, Function):
        read = {part for parts in view.shared.names(body) for part in parts}
        return read.isdisjoint(("truncated", "rewards"))
    if not isinstance(body, Constructor):
        return False
    if body.name == "contains":
        text = str(body.args.get("text") or "").strip()  # R529 reports a target that is a number
        return bool(text) and not text.isdigit() and not any(end in text for end in ("</", "<|"))
    return body.name == "format_regex" and str(body.args.get("pattern")).endswith(".*")
