"""D651 thinking-forbidden: the prompt asks the model not to think, but a reward wants thoughts.

    dataset sums { system = "/no_think Answer in <answer> tags.", ... }
    reward form = rl.think_tags                                             # fires
    reward form = rl.format_regex("(?s).*<answer>.*</answer>\\\\s*")          # silent

Models of Qwen3 write an empty `<think>` block after `/no_think`. Then either the empty block
satisfies the reward, or the reward is always 0 (flux-2-swift-mlx #70 lists the models that obey).
Leave `/no_think` out, or reward the answer alone.
"""

from collections.abc import Iterator

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import constant_text
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
SAYS, TAG, END = "/no_think", "<think>", "</think>"


def check(view: View) -> Findings:
    wanted = [
        reward
        for reward in view.program.rewards.values()
        if isinstance(reward.body, Constructor)
        and (reward.body.name == "think_tags" or END in str(reward.body.args.get("pattern")))
    ]
    for found in python_rewards(view):
        from forgedsl.lint.python_bodies import body_of  # most programs have no Python

        wanted += [found.reward] if next(body_of(found).searched_texts(TAG), None) else []
    drawn = [s.receiver for s in view.program.flow if Role.PROMPTS in s.roles] if wanted else []
    for name in dict.fromkeys(drawn):
        span = next(_says(view.program.datasets[name]), None)
        if span is not None:
            yield finding(
                f"`{SAYS}` in the prompt forbids the `{TAG}` block that `{wanted[0].name}` wants",
                span,
                related=(Label(text="wants it", span=place_of(wanted[0], view)),),
                help=f"leave `{SAYS}` out, or reward the answer alone",
            )


def _says(dataset: Decl) -> Iterator[Span]:
    """Yield the places where a prompt says so: in `system`, or in a string of the prompt."""
    system, prompt = dataset.settings["system"], dataset.settings["prompt"].value
    if SAYS in str(system.value):
        yield system.origin.span or dataset.name_span
    for node in walk(prompt.expr) if isinstance(prompt, Deferred) else ():
        text = constant_text(node, prompt.scope)
        if text is not None and SAYS in text:
            yield node.span
