"""L437 unbounded-ratio: samples may be several versions old, and nothing bounds their ratio.

    minimize token_mean(-ratio * adv, mask)                              # fires from age 4 on
    minimize token_mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)     # silent
    minimize token_mean(-stop(min(ratio, 5.0)) * adv * logprob, mask)             # silent

The ratio to the sampler corrects for the age of a sample. The variance of the ratio grows with the
age: a few tokens that became likely count a hundred times as much, and one step with them can end
the run (tinker-feedback #24 asks for a bound). Clip it, truncate it, or drop tokens that are far
off. The rule fires for a `max_policy_age` of 4 and more, and for groups from a buffer whose
`max_age` is 4 or more. At any age, it fires if the minimum with a clipped term is only reported, as
in rllm #81.
"""

import math
from itertools import product

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import one_sided_clip
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View, place
from forgedsl.losses.tree import reachable
from forgedsl.source import Span

finding = rule(__doc__, "W")
OLD = 4
FAR = 50.0
"""a ratio far beyond every bound in use"""


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None or not loss.samplers or loss.cached(one_sided_clip) is not None:
            continue
        old = _oldest(view, loss)
        if old is not None and loss.cached(_grows):
            age, span = old
            yield finding(
                f"loss `{loss.name}` weights tokens by a ratio without bound, and samples may be "
                f"{age} versions old",
                loss.place,
                related=(Label(text="their age", span=span),),
                help="`rl.ppo`, `rl.cispo(max_weight = 5.0)`, or `stop(min(ratio, 5.0))` as the "
                "weight",
            )
        elif loss.cached(_only_reported):
            yield finding(
                f"loss `{loss.name}` clips the ratio in a report, and minimizes the unclipped term",
                loss.spot(loss.tree.output("loss")),
                help="minimize the term with the clip: `-min(ratio * adv, clip(ratio, ...) * adv)`",
            )


def _only_reported(loss: LossView) -> bool:
    """True if only a report takes the minimum of what is minimized and of another surrogate."""
    values = loss.tree.values
    if loss.is_pairs or not loss.older or not loss.cached(_grows):
        return False
    for node in reachable(values, [number for _, number in loss.tree.outputs]):
        value = values[node]
        if node in loss.objective or value.op not in ("min", "max"):
            continue
        for free, bounded in (value.args, value.args[::-1]):
            inside = {values[n].op for n in reachable(values, [bounded])}
            if "clamp" in inside and _is_minimized(loss, free):
                return True
    return False


def _is_minimized(loss: LossView, node: int) -> bool:
    """True if the loss has the gradient of a value, or its negative."""
    places = product((1.0, 3.0), (1.0, -1.0))
    return all(
        math.isclose(
            abs(loss.point(ratio=ratio, weight=weight)(node).slope),
            abs(loss.gain(ratio=ratio, weight=weight)),
            rel_tol=1e-6,
        )
        for ratio, weight in places
    )


def _oldest(view: View, loss: LossView) -> tuple[int, Span] | None:
    """Return the greatest age of samples, if it is large, and where it is set: by a buffer that
    they are drawn from, or by the schedule."""
    buffers, schedule = view.program.declared.get("buffer", {}), view.program.schedule
    settings = [(buffers[s.receiver], "max_age") for s in loss.recalls if s.receiver in buffers]
    if schedule is not None and schedule.label == "async":
        settings.append((schedule, "max_policy_age"))
    for decl, key in settings:
        age = decl.settings[key]
        if isinstance(age.value, int) and age.value >= OLD:
            return age.value, place(age, decl)
    return None


def _grows(loss: LossView) -> bool:
    """True if the gradient of a good token grows in proportion to its ratio, however large."""
    if loss.is_pairs or not any(name in loss.read for name in loss.fields("weight")):
        return False
    near, far = abs(loss.gain()), abs(loss.gain(ratio=FAR))
    return near > 1e-12 and far > 0.9 * FAR * near
