"""L431 reused-without-ratio: a step updates several times on samples, and the loss forgets whose.

After the first of `epochs` x `minibatches` updates the samples are no longer those of the weights
that learn from them. A loss that reads neither `behavior` nor `proximal` takes them for its own:
the further the weights move within the step, the more it pushes in a direction that was right
before (DeepSpeedExamples #533 trained so, and its reward fell).

    trainer.step(batch, loss = rl.reinforce, epochs = 2, minibatches = 4)        # fires
    trainer.step(batch, loss = rl.ppo, epochs = 2, minibatches = 4)              # silent

Weigh each token by its ratio and bound it: `rl.ppo`, or with `proximal = trainer.logprobs(rollout)`
in the batch `rl.tis_ppo`. Data that nobody sampled (`batches`, `pairs`) may be used again as it is.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None or loss.updates < 2 or loss.older or not any(view.samplers()):
            continue
        stale = view.stale
        yield finding(
            f"{loss.updates} updates on the samples of one policy, "
            f"and loss `{loss.name}` does not know it",
            loss.place,
            related=(Label(text="they may be older still", span=stale),) if stale else (),
            help="weight by exp(clamp(logprob - behavior, -10.0, 10.0)) and clip it, "
            "or make one update a step",
        )
