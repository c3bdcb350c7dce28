"""L426 ignored-advantage: the flow computes an advantage, but the gradient does not depend on it.

The score is then computed and plotted, but nothing is learned from it (skrl #357). Multiply by the
advantage.

    batch = replay(rollout, adv = group_norm(score))
    loss pg(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
      ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
      minimize token_mean(-ratio, mask)                                # fires: without adv
    }
      minimize token_mean(-ratio * adv, mask)                          # silent

In a flow without advantage, the gradient must depend on the log-probs of a teacher. Reports do not
count. The rule evaluates the derivative of the loss for a token.
"""

from itertools import product

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import wrong_sign_advantage
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.intervals import MASKED
from forgedsl.losses.tree import reachable
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")
ENTROPIES = 0.5, 3.0, 0.01
"""entropies to try, in this order: a loss may learn only from tokens of high entropy, or of low"""


def check(view: View) -> Findings:
    for loss in view.losses:
        made = {name: step for name, step in loss.bound.items() if Role.COMPUTES in step.roles}
        if not made and _learns_from_itself(view, loss):
            made = {name: step for name, step in loss.bound.items() if step.is_logprobs}
        if not made or loss.cached(_depends) or loss.cached(wrong_sign_advantage) is not None:
            continue
        name, step = next(iter(made.items()))
        yield finding(
            f"what `{loss.name}` learns does not depend on `{name}`",
            loss.spot(loss.tree.output("loss")),
            related=(Label(text="nothing is learned from this", span=step.span),),
            help=f"make `{name}` a factor of what is minimized: `-ratio * {name}`"
            if not step.is_logprobs
            else f"compare with it: `{name} - stop(logprob)` as the weight, or a divergence",
        )


def _learns_from_itself(view: View, loss: LossView) -> bool:
    """True if the loss makes all its own samples likelier, regardless of their quality."""
    samplers = (view.program.services[step.receiver] for step in loss.samplers)
    sampled = any(service.ctor_args[0].name in view.trained for service in samplers)
    kept = any(Role.DROPS in step.roles for step in view.program.flow)
    if not sampled or kept or loss.is_pairs:
        return False
    distances = [loss.slope(distance=d, weight=0.0) for d in (0.0, 0.7, -1.1)]
    return max(distances) - min(distances) < 1e-12


def _depends(loss: LossView) -> bool:
    """True if the gradient depends on a field of the batch, as a factor or in a mask."""
    values, weights = loss.tree.values, loss.fields("weight")
    last = [values[n].args[-1] for n in loss.objective if values[n].op in MASKED]
    masks = [node for node in last if values[node].type.dtype == "bool"]
    if any(values[n].attr in weights for n in reachable(values, masks)):
        return True
    entropies = ENTROPIES if "entropy" in loss.read else ENTROPIES[:1]
    for entropy, ratio, logprob in product(entropies, (1.0, 0.8, 1.3), (-1.0, -3.0)):
        at = {"ratio": ratio, "logprob": logprob, "entropy": entropy}
        slopes = [loss.slope(weight=w, **at) for w in (-1.0, 0.0, 1.0, 2.0)]
        if max(slopes) - min(slopes) > 1e-12:
            return True
    return False
