"""L431 reused-without-ratio: several updates on the same samples, without a ratio in the loss.

After the first of `epochs` x `minibatches` updates, the samples are not those of the current
weights. A loss that reads neither `behavior` nor `proximal` treats them as on-policy: the further
the weights move within the step, the more biased is its gradient (DeepSpeedExamples #533 trained
like this, and its reward fell).

    trainer.step(batch, loss = rl.reinforce, epochs = 2, minibatches = 4)        # fires
    trainer.step(batch, loss = rl.ppo, epochs = 2, minibatches = 4)              # silent

Weight each token by a clipped ratio: use `rl.ppo`, or `rl.tis_ppo` with
`proximal = trainer.logprobs(rollout)` in the batch. Data that was not sampled by a policy
(`batches`, `pairs`) may be reused without a ratio.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None or loss.updates < 2 or loss.older or not any(view.samplers()):
            continue
        if "proximal" in loss.read and loss.bound["proximal"].is_logprobs:
            continue  # of a model that is not trained: L435
        stale = view.stale_span
        yield finding(
            f"{loss.updates} updates on the samples of one policy, "
            f"and loss `{loss.name}` has no ratio to that policy",
            loss.place,
            related=(Label(text="they may be older still", span=stale),) if stale else (),
            help="weight by exp(clamp(logprob - behavior, -10.0, 10.0)) and clip it, "
            "or make one update a step",
        )
