"""L408 kl-gradient: the KL estimate has the right value, but not the gradient of the KL.

An estimator of the KL to a reference can be unbiased as a number and wrong as a loss. With
d = logprob - ref and samples of the current policy:

    estimate        as a loss its gradient is
    k1 = d          zero on average: it does nothing but add noise
    k3 = exp(-d) + d - 1     that of the forward KL(ref, policy), not of KL(policy, ref)
    k2 = d^2 / 2, ratio * k3     that of KL(policy, ref)

With k1 the policy is not held to its reference; with k3 it is pulled in the direction of another
divergence. Multiply k3 by the ratio, or use k2. See TRL #4638 and #6503, OpenRLHF #1309, and
2512.02556. The rule evaluates the derivative of the loss for a token as a function of d.

    minimize token_mean(pg + beta * rl.k3(logprob, ref), mask)               # fires
    minimize token_mean(pg + beta * ratio * rl.k3(logprob, ref), mask)       # silent
    minimize token_mean(rl.k3(logprob, teacher), mask)       # silent: nothing else is learned
"""

import math

from forgedsl.diagnostics import Diagnostic, Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView, Spot
from forgedsl.lint.view import View
from forgedsl.source import Span

finding = rule(__doc__, "W")
DISTANCES = (-1.5, -0.5, 0.5, 1.0, 2.0)


def check(view: View) -> Findings:
    for loss in view.losses:
        found = loss.cached(_estimate)
        if found is not None and not (found[0] == "k3" and _is_distilled(view, loss)):
            kind, node = found
            yield _report(loss, kind, loss.spot(node))


def _is_distilled(view: View, loss: LossView) -> bool:
    """True if the forward KL is intended: to another model, as the only term (distillation)."""
    rated = [s for s in loss.bound.values() if s.is_logprobs and s.receiver]
    models = {view.program.services[step.receiver].ctor_args[0].name for step in rated}
    weighed = any(name in loss.read for name in loss.fields("weight"))
    return bool(models) and not weighed and models.isdisjoint(view.trained)


def _estimate(loss: LossView) -> tuple[str, int] | None:
    """Return the kind of KL estimate in the loss, and its value."""
    references = [name for name in loss.fields("reference") if name in loss.read]
    if not references or loss.is_pairs or "logprob" not in loss.read:
        return None
    kind = _kind(loss, loss.tree.output("loss"))
    return (kind, loss.dominator(references, lambda n: _kind(loss, n) == kind)) if kind else None


def _kind(loss: LossView, node: int) -> str:
    """Return `k1` or `k3`, by how the slope of a value changes with d; "" for anything else."""
    at = {d: loss.point(weight=0.0, distance=d)(node).slope for d in (0.0, *DISTANCES)}
    if not all(math.isfinite(slope) for slope in at.values()):
        return ""
    change = {d: at[d] - at[0.0] for d in DISTANCES}
    if abs(at[0.0] + change[1.0] / (1 - math.exp(-1.0))) < 1e-6 * abs(at[0.0]):
        return ""  # slope -exp(-d): the forward KL itself, with importance weights of the reference
    if all(abs(c) < 1e-9 for c in change.values()):
        # negative slope: learning the reference's completions
        return "k1" if at[0.0] > 1e-9 else ""
    forward = [c / (1 - math.exp(-d)) for d, c in change.items()]
    spread = max(forward) - min(forward)  # a negative weight is L420
    return "k3" if min(forward) > 0 and spread < 1e-6 * max(forward) else ""


def _report(loss: LossView, kind: str, spot: Spot) -> Diagnostic:
    if kind == "k1":
        return finding(
            "as a loss term, this estimate of the KL has a gradient of zero mean",
            spot,
            notes=("d loss / d logprob does not depend on the distance to the reference",),
            help="use `0.5 * (logprob - ref) ** 2`, or `ratio * rl.k3(logprob, ref)`",
        )
    weighted = bool(loss.fields("sampler"))
    return finding(
        "without an importance weight, the gradient of k3 is that of the forward KL",
        spot,
        notes=("the forward KL is mass-covering; KL(policy, ref) is mode-seeking",),
        help="multiply it by the ratio: `ratio * rl.k3(logprob, ref)`",
        fix=_weight(loss, spot) if weighted else None,
    )


def _weight(loss: LossView, spot: Spot) -> Fix | None:
    """Return the fix that multiplies by the ratio, if the loss has one under that name."""
    named = [value.name for value in loss.tree.values if value.op == "exp" and value.name]
    if (
        not named
        or spot.span.file != loss.function.span.file
        or (spot.node is None and spot.also == ())
    ):
        return None
    start = Span(spot.span.file, spot.span.start, spot.span.start)
    text = f"{named[0]} * "
    return Fix(
        message=f"multiply by `{named[0]}`", edits=(Edit(text=text, span=start),), safe=False
    )
