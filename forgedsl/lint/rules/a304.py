"""A304 kept-keys: completions continue on a KV cache of older weights, and the loss has no ratio.

With `on_swap = keep`, completions in flight at a weight swap keep the keys and values that older
weights computed (PipelineRL). Their further tokens are drawn from a distribution that no version of
the policy has. Only the sampler's log-probs, `behavior`, belong to that distribution, so a loss
that does not read them is biased. NeMo-RL #4018 sampled with keys up to 17 updates old unnoticed.

    sync trainer -> generator { on_swap = keep }
    minimize token_mean(-logprob * adv, mask)                         # fires
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))               # silent

Weight the loss by a ratio to `behavior`, or leave `on_swap` at `recompute`.
"""

from forgedsl.diagnostics import Edit, Fix, Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    if view.stale_span is None:
        return  # no completions are in flight at a swap
    for step in view.program.flow:
        if Role.TRANSFERS not in step.roles or step.settings["on_swap"].value != "keep":
            continue
        target = step.settings["target"].value.name
        for loss in view.losses:
            if "behavior" in loss.read or target not in {s.receiver for s in loss.samplers}:
                continue
            span = step.settings["on_swap"].origin.span or step.span
            yield finding(
                f"`{target}` goes on with keys of older weights, but loss `{loss.name}` does not "
                "read the log-probs of what it sampled",
                span,
                related=(Label(text="never reads `behavior`", span=loss.place),),
                help="weight by exp(clamp(logprob - behavior, -10.0, 10.0)), or recompute",
                fix=Fix(
                    message="recompute", edits=(Edit(text="recompute", span=span),), safe=False
                ),
            )
