"""L427 reference-is-policy: the reference of a loss is the trained policy itself.

DPO and similar losses measure how far the policy has moved from a frozen reference. Log-probs of
the trainer are those of the current policy: the margin is 0 in every step, and nothing holds the
policy to its starting point (DPO #46). Declare a second, frozen service.

    batch = replay(pair, ref = trainer.logprobs(pair))                       # fires
    batch = replay(pair, ref = reference.logprobs(pair))                     # silent
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
REFERENCES = ("ref", "reference", "ref_lp", "ref_logprob", "ref_logprobs")
"""names of fields that hold a frozen model's log-probs"""


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None:
            continue
        for name, step in loss.bound.items():
            mine = step.is_logprobs and step.receiver == loss.step.receiver
            if mine and (loss.is_pairs or (name in REFERENCES and name in loss.read)):
                yield finding(
                    f"`{name}` comes from the policy that is trained, so it is no reference",
                    step.span,
                    related=(Label(text="is trained", span=loss.step.span),),
                    notes=("both sides have the same weights, so their difference is always 0",),
                    help="declare a service that is not trained, `service reference : "
                    "titan(policy)`, and use `reference.logprobs(...)`",
                )
