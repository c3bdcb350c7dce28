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
count. The rule evaluates the derivative of the loss for a token. It also fires if only answers that
were cut at `max_tokens` are learned from (TRL #3248 leaves them out), if a mask never holds, and if
a weight that reads `num_steps` is 0 from some update to the end of the run.

      minimize token_mean(-ratio * adv, mask and truncated)            # fires: the others are left
      minimize token_mean(-ratio * adv, mask and not truncated)        # silent
"""

from itertools import product

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import turns_at, wrong_sign_advantage
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.intervals import MASKED
from forgedsl.losses.tree import reachable
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")
ENTROPIES = 0.5, 3.0, 0.01
"""entropies to try, in this order: a loss may learn only from tokens of high entropy, or of low"""

ADVANTAGES = 1.0, -1.0, 0.0, 0.05, -0.05, 3.0
"""advantages at which a mask is tried"""


def check(view: View) -> Findings:
    for loss in view.losses:
        cut = loss.cached(_only_cut) if loss.step is not None else None
        if cut is not None:
            yield finding(
                "this loss learns only from answers that were cut at `max_tokens`",
                loss.spot(cut),
                help="`mask and not truncated` leaves out those that were cut",
            )
            continue
        never = loss.cached(_never) if loss.step is not None else None
        if never is not None:
            yield finding(
                "this mask holds for no token",
                loss.spot(never),
                help="two of its conditions exclude each other: leave one out",
            )
            continue
        last = _stops(loss)
        if last:
            yield finding(
                f"nothing is learned after {last} of {loss.updates_of_run} updates",
                loss.spot(loss.tree.output("loss")),
                notes=("`num_steps` counts updates, and a weight that reads it becomes 0",),
                help="let it fall more slowly, or keep a floor: `max(0.1, ...)`",
            )
            continue
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


def _only_cut(loss: LossView) -> int | None:
    """Return the value that leaves out all answers that were not cut: a mask, or a factor."""
    if "truncated" not in loss.read or loss.is_pairs:
        return None
    values = loss.tree.values
    for node in sorted(loss.objective):
        mask = values[node].args[-1] if values[node].op in MASKED else node
        if values[mask].type.dtype == "bool" and mask != node:
            ended, cut = (_holds(loss, mask, truncated) for truncated in (0.0, 1.0))
            if cut and not ended:
                return node
    places = [{"weight": w, "ratio": r} for w in (1.0, -1.0) for r in (1.0, 0.8, 1.3)]
    ended, cut = (
        any(abs(loss.slope(truncated=truncated, **at)) > 1e-12 for at in places)
        for truncated in (0.0, 1.0)
    )
    return loss.tree.output("loss") if cut and not ended else None


def _never(loss: LossView) -> int | None:
    """Return a sum over tokens whose mask holds for none of them."""
    values = loss.tree.values
    if loss.is_pairs:
        return None
    for node in sorted(loss.objective):
        mask = values[node].args[-1] if values[node].op in MASKED else node
        read = {values[n].attr for n in reachable(values, [mask]) if values[n].op == "input"}
        known = read <= {"mask", "truncated", *loss.fields("weight")}
        is_mask = mask != node and values[mask].type.dtype == "bool" and values[mask].op == "and"
        if is_mask and known and not any(_holds(loss, mask, each) for each in (0.0, 1.0)):
            return node
    return None


def _holds(loss: LossView, mask: int, truncated: float) -> bool:
    """True if a mask holds for a token at some advantage and ratio."""
    places = product(ADVANTAGES, (0.5, 1.0, 2.0), (-1.0, -3.0))
    return any(
        loss.point(truncated=truncated, weight=w, ratio=r, logprob=logprob)(mask).value
        for w, r, logprob in places
    )


def _stops(loss: LossView) -> int:
    """Return the update after which nothing is learned to the end of the run; 0 without one."""

    def learns(update: int) -> bool:
        slopes = (
            loss.slope(num_steps=float(update), weight=w, ratio=r)
            for w, r in product((1.0, -1.0), (1.0, 0.8, 1.3))
        )
        return any(abs(slope) > 1e-12 for slope in slopes)

    return turns_at(loss, lambda update: not learns(update)) or 0


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
