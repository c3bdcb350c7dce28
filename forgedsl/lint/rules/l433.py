"""L433 clip-around-sampler: several updates per step, clipped around the sampler's older weights.

With `schedule async` the ratio to `behavior` differs from 1 before the first update of a step,
because of the age of the sample and numerical differences between sampler and trainer. That uses up
a clip that should limit the updates of this step, and tokens outside of it learn nothing.

    schedule async { steps = 100, max_policy_age = 1 }
    trainer.step(batch, loss = rl.ppo, epochs = 2, minibatches = 4)              # fires
    trainer.step(batch, loss = rl.tis_ppo, epochs = 2, minibatches = 4)          # silent

Clip around the weights at the start of the step, and weight by the remaining ratio:
`proximal = trainer.logprobs(rollout)` in the batch, and `rl.tis_ppo` (decoupled PPO, 2110.00641).
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
FAR = 8.0
"""a ratio outside of every clip in use"""


def check(view: View) -> Findings:
    for loss in view.losses:
        older = loss.recalls[0].span if loss.recalls else view.stale_span
        if older is None or loss.step is None or loss.updates < 2 or loss.older != ["behavior"]:
            continue
        if loss.cached(_clips):
            yield finding(
                f"{loss.updates} updates a step are clipped around the sampler's weights, not "
                f"around those at its start",
                loss.place,
                related=(Label(text="which may be older than the step", span=older),),
                help="`proximal = trainer.logprobs(rollout)` in the batch, and `rl.tis_ppo`",
            )


def _clips(loss: LossView) -> bool:
    """True if a token whose ratio to the sampler is far from 1 has no gradient."""
    near, far = loss.slope(weight=1.0), loss.slope(weight=1.0, ratio=FAR)
    return abs(near) > 1e-12 and abs(far) < 1e-12
