"""A304 kept-keys: completions go on with keys of older weights, and the loss does not know it.

With `on_swap = keep` what is in flight at a weight swap keeps the keys and values that older
weights made (PipelineRL). Its tokens are then drawn from a distribution that no version of the
policy has; only the sampler's log-probs, `behavior`, are those of that distribution. NeMo-RL #4018
sampled from keys up to 17 updates old without knowing it.

    sync trainer -> generator { on_swap = keep }
    minimize token_mean(-logprob * adv, mask)                         # fires
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))               # silent

Weigh by a ratio to `behavior`, or leave `on_swap` at `recompute`.
"""

from forgedsl.diagnostics import Edit, Fix, Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    if view.stale is None:
        return  # nothing is in flight at a swap
    for step in view.program.flow:
        if Role.TRANSFERS not in step.roles or step.settings["on_swap"].value != "keep":
            continue
        target = step.settings["target"].value.name
        for loss in view.losses:
            if "behavior" in loss.read or target not in {s.receiver for s in loss.samplers}:
                continue
            span = step.settings["on_swap"].origin.span or step.span
            yield finding(
                f"`{target}` goes on with keys of older weights, and loss `{loss.name}` does not "
                "know what it drew from",
                span,
                related=(Label(text="never reads `behavior`", span=loss.place),),
                help="weight by exp(clamp(logprob - behavior, -10.0, 10.0)), or recompute",
                fix=Fix(
                    message="recompute", edits=(Edit(text="recompute", span=span),), safe=False
                ),
            )
