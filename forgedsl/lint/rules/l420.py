"""L420 reversed-regularizer: the KL or the entropy term has the wrong sign.

A KL is a penalty and an entropy a bonus: the loss must grow as the policy moves away from the
reference, and fall as its entropy grows. With the other sign, the policy is driven away from the
reference (Logic-RL #58), or collapses. With swapped arguments, k3(ref, logprob), the gradient grows
exponentially with the distance instead of staying bounded (NeMo-RL #2506, Marin #1708). Correct the
sign or the order.

    minimize token_mean(pg - beta * ratio * rl.k3(logprob, ref), mask)       # fires
    minimize token_mean(pg + beta * rl.k3(ref, logprob), mask)               # fires
    minimize token_mean(pg + 0.001 * entropy, mask)                          # fires
    minimize token_mean(-ratio * (ref + stop(logprob)), mask)                # fires: a sum of both
    minimize token_mean(pg - beta * (logprob - behavior) ** 2, mask)  # fires: rewards distance
    minimize token_mean(pg + beta * ratio * rl.k3(logprob, ref) - 0.001 * entropy, mask)   # silent

The rule probes each term alone: the derivative for a token at advantage 0, as the distance to the
reference or the entropy changes. It does so at the first update and, if the loss reads `num_steps`,
at the last one: a weight that falls along a line becomes negative before the run ends.

    weight = 0.003 * (1.0 - num_steps / 100)               # fires in a run of 500 steps
    weight = 0.003 * max(0.0, 1.0 - num_steps / 100)       # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import turns_at
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
ENTROPIES = (0.05, 0.5, 2.0)
FAR = 12.0
"""factor of growth of the gradient, for twice the distance, that counts as exponential"""


def check(view: View) -> Findings:
    for loss in view.losses:
        if "entropy" in loss.read and loss.cached(_charges) is not None:
            yield finding(
                "this loss penalizes entropy: it drives the policy to one answer",
                loss.spot(loss.cached(_charges)),  # type: ignore[arg-type]
                notes=("d loss / d entropy is positive",),
                help="a bonus is subtracted: `- 0.001 * entropy`",
            )
        yield from _late(loss)
        away = loss.cached(_leaves)
        if away is not None:
            yield finding(
                "this loss falls as the policy moves away from its sampler",
                loss.spot(away),
                notes=("at advantage 0 it pulls away from the weights that sampled",),
                help="a distance is a penalty: add it with a positive weight",
            )
        shifted = loss.cached(_shifted)
        if shifted is not None:
            yield finding(
                "this loss changes a policy that equals its reference",
                loss.spot(shifted),
                notes=("d loss / d logprob depends on more than the distance to the reference",),
                help="take their difference: `logprob - ref`",
            )
        found = loss.cached(reversed_kl)
        if found is not None:
            node, swapped = found
            yield finding(
                "the sides of this KL estimate are swapped"
                if swapped
                else "this loss falls as the policy moves away from the reference",
                loss.spot(node),
                notes=(
                    "its pull grows exponentially with the distance"
                    if swapped
                    else "d loss / d logprob falls as logprob grows above the reference",
                ),
                help="`rl.k3(logprob, ref)`: the policy comes first"
                if swapped
                else "a KL is a penalty: add it with a positive weight",
            )


def _late(loss: LossView) -> Findings:
    late = _turns(loss)
    if late is not None:
        name, update = late
        yield finding(
            f"the weight of the {name} is negative after {update} of {loss.updates_of_run} updates",
            loss.spot(loss.tree.output("loss")),
            notes=("`num_steps` counts updates; below 0 the term does the opposite",),
            help="stop at 0: `max(0.0, ...)` around what falls",
        )


def _charges(loss: LossView) -> int | None:
    """Return the value through which entropy is penalized."""

    def positive(node: int) -> bool:
        return any(
            all(
                loss.point(weight=weight, entropy=e, wrt="entropy")(node).slope > 1e-12
                for e in ENTROPIES
            )
            for weight in (0.0, 1.0, -1.0)
        )

    end = loss.tree.output("loss")
    if not positive(end):
        return None
    # the entropy itself is positive too; the finding belongs to the first value added to others
    sums = [n for n in loss.objective if loss.tree.values[n].op in ("add", "sub") and positive(n)]
    return min(sums, default=end)


def _turns(loss: LossView) -> tuple[str, int] | None:
    """Return the term, entropy or KL, whose sign changes during the run, and the update at which it
    does."""
    out = loss.tree.output("loss")

    def charges(update: int) -> float:
        at = float(update)
        return loss.point(weight=0.0, wrt="entropy", num_steps=at)(out).slope

    def pulls(update: int) -> float:
        far, near = (
            loss.slope(weight=0.0, distance=d, num_steps=float(update)) for d in (1.0, -1.0)
        )
        return near - far

    kinds = [("entropy", charges)] if "entropy" in loss.read else []
    if any(name in loss.read for name in loss.fields("reference")) and "logprob" in loss.read:
        kinds.append(("KL", pulls))
    for name, wrong in kinds:
        update = turns_at(loss, lambda each, wrong=wrong: wrong(each) > 1e-12)  # type: ignore[misc]
        if update is not None and wrong(1) < -1e-12:
            return name, update
    return None


def reversed_kl(loss: LossView) -> tuple[int, bool] | None:
    """Return the KL term with the wrong sign, and True if its arguments are swapped."""
    references = [name for name in loss.fields("reference") if name in loss.read]
    if not references or loss.is_pairs or "logprob" not in loss.read:
        return None
    for test, swapped in ((_falls, False), (_explodes, True)):
        if test(loss, loss.tree.output("loss")):
            return loss.dominator(references, lambda n: test(loss, n)), swapped  # noqa: B023
    return None


def _leaves(loss: LossView) -> int | None:
    """Return the term that drives the policy away from its sampler at any advantage."""
    if loss.is_pairs or not loss.older or "logprob" not in loss.read:
        return None

    def away(node: int) -> bool:
        slopes = [loss.point(weight=0.0, ratio=ratio)(node).slope for ratio in (0.6, 0.8, 1.2, 1.5)]
        return min(slopes[:2]) > 1e-9 and max(slopes[2:]) < -1e-9

    return loss.dominator(loss.older, away) if away(loss.tree.output("loss")) else None


def _shifted(loss: LossView) -> int | None:
    """Return the value through which the pull to the reference depends on a token's log-prob
    itself."""
    references = [name for name in loss.fields("reference") if name in loss.read]
    if not references or loss.is_pairs or "logprob" not in loss.read or reversed_kl(loss):
        return None

    def moves(node: int) -> bool:
        at = [loss.point(weight=0.0, logprob=logprob)(node).slope for logprob in (-0.1, -1.0, -3.0)]
        return max(at) - min(at) > 1e-9

    return loss.dominator(references, moves) if moves(loss.tree.output("loss")) else None


def _pull(loss: LossView, node: int, distance: float) -> float:
    at = (loss.point(weight=0.0, distance=d, logprob=-8.0) for d in (distance, 0.0))
    slopes = [point(node).slope for point in at]
    return slopes[0] - slopes[1]


def _falls(loss: LossView, node: int) -> bool:
    return all(_pull(loss, node, d) < _pull(loss, node, -d) - 1e-12 for d in (0.5, 1.0, 2.0))


def _explodes(loss: LossView, node: int) -> bool:
    return _pull(loss, node, 6.0) > FAR * _pull(loss, node, 3.0) > 0
