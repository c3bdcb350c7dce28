"""D601 truncated-sampling: top_p, top_k, min_p or min_tokens in a sampler that is trained on.

A truncated sampler renormalises over the tokens it keeps, but the trainer's log-probs are over the
full vocabulary. The ratio is then wrong by the kept probability mass: with top_p = 0.8, TRL #7269
measured a mean ratio of 0.896, and 52 % of the tokens more than 10 % off.

    sampling { temperature = 1.0, top_p = 0.95, max_tokens = 512 }      # fires
    sampling { temperature = 1.0, max_tokens = 512 }                    # silent

`min_tokens` (32 and more) excludes the end token for so long: where it was likely, the trainer
gives the sampled token a much smaller probability. Sample from the full vocabulary. Evaluations may
truncate (`sample { top_p = ... }` of an eval), and so may a frozen teacher if the loss has no ratio
to it.
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.hir.evaluate import show
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "D")
FULL = {
    "sampling.top_p": 1.0, "sampling.top_k": None, "sampling.min_p": 0.0, "sampling.min_tokens": 0,
}  # fmt: skip
FEW = 32
"""an end token is unlikely in the first tokens of an answer anyway"""


def check(view: View) -> Findings:
    for service in view.trained_samplers():
        for name, full in FULL.items():
            value = service.settings[name]
            most = service.settings["sampling.max_tokens"].value
            if name == "sampling.min_tokens" and not FEW <= value.value <= (most or value.value):
                continue  # more than `max_tokens` is F113
            if value.value == full:
                continue
            span = place(value, service)
            edit = Edit(text=show(full) if full is None else f"{full}", span=span)
            shown = f"{name} = {show(value.value)}"
            yield finding(
                f"`{shown}` samples from a part of the vocabulary, but the trainer's log-probs are "
                "over all of it",
                span,
                help="sample from the full vocabulary; an eval may truncate",
                fix=Fix(message=f"set it to {edit.text}", edits=(edit,), safe=False),
            )
