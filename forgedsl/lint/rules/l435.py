"""L435 proximal-of-another: the field `proximal` holds log-probs of a model that is not trained.

    proximal = reference.logprobs(rollout)           # fires: a frozen model
    proximal = trainer.logprobs(rollout)             # silent: the weights before the step

Three policies are in play: the one that sampled (`behavior`), the one before the step (`proximal`)
and the current one. A clip around a frozen model holds the policy at its start: after some steps
every token is outside of it and nothing is learned (decoupled PPO, 2110.00641; AReaL #599 names the
three). Ask the trainer: it computes them under the weights before the step.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        source = loss.bound.get("proximal") if loss.step is not None else None
        if source is None or not source.is_logprobs or loss.step is None:
            continue
        if source.receiver != loss.step.receiver and "proximal" in loss.read:
            yield finding(
                f"`proximal` comes from `{source.receiver}`, which is not trained",
                source.span,
                related=(Label(text=f"trains `{loss.step.receiver}`", span=loss.step.span),),
                help=f"`proximal = {loss.step.receiver}.logprobs(...)`: the weights before the "
                "step",
            )
