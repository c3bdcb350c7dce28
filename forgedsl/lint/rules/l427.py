"""L427 reference-is-policy: pairs are compared with the policy that is being trained.

DPO and its kin measure how far the policy has moved from a frozen reference. Log-probs of the
trainer itself are always those of the policy: the margin is 0 at every step, and nothing holds the
policy to where it began (DPO #46).

    batch = replay(pair, ref = trainer.logprobs(pair))                       # fires
    batch = replay(pair, ref = reference.logprobs(pair))                     # silent
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None or not loss.is_pairs:
            continue
        for name, step in loss.bound.items():
            if step.is_logprobs and step.receiver == loss.step.receiver:
                yield finding(
                    f"`{name}` is the policy that is trained, not a reference",
                    step.span,
                    related=(Label(text="is trained", span=loss.step.span),),
                    notes=("both sides of the comparison are the same weights: it is 0 always",),
                    help="declare a service that is not trained, `service reference : "
                    "titan(policy)`, and use `reference.logprobs(...)`",
                )
