"""L432 ratio-is-one: a ratio to the weights at the start of a step that has one update.

`proximal = trainer.logprobs(rollout)` is computed with the weights at the start of the step. With
one update these are the trained weights: the ratio is 1 for every token, its clip never acts, and
the pass over the batch that computes `proximal` is wasted (DAPO #11).

    batch = replay(rollout, adv = adv, proximal = trainer.logprobs(rollout))
    trainer.step(batch, loss = clipped_around_proximal)                          # fires
    trainer.step(batch, loss = clipped_around_proximal, minibatches = 4)         # silent

Give the step `epochs` or `minibatches`, or use the ratio to `behavior`. A loss that reads both
corrects the mismatch between sampler and trainer (`rl.tis_ppo`), and is silent.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.stale_span is not None or not any(view.samplers()):
        return  # A303: the loss has to read `behavior`; L427 speaks of pairs
    for loss in view.losses:
        bound = [name for name in loss.older if name in loss.bound]
        if loss.step is None or loss.updates != 1 or not bound or "behavior" in loss.read:
            continue
        if loss.recalls:
            continue  # A303 again
        source = loss.bound[bound[0]]
        yield finding(
            f"the ratio to `{bound[0]}` is 1 for every token: the step has one update",
            loss.place,
            related=(Label(text="log-probs under the weights before the step", span=source.span),),
            help="`epochs = 2, minibatches = 4` in the step, or a ratio to `behavior`",
        )
