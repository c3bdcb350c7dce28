"""R508 weight-scale: one term of a rubric dominates the others, or the weights of a reward cancel.

    score = 100.0 * correct + 0.1 * thinking         # fires: a span of 100 beside one of 0.1
    score = correct + 0.1 * thinking - 0.1 * thinking    # fires
    score = correct + 0.001 * brevity                # silent: among equals it breaks ties

A term counts by its span: weight times range of the reward. If a term spans more than 20, and more
than 20 times the others, it probably has another unit, and the others have no effect. See TRL
#3857. Adjust the weights.
"""

from forgedsl.ir.program import Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import reward_interval
from forgedsl.lint.rubrics import Term, weights
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
LARGEST = 20.0


def check(view: View) -> Findings:
    for rubric in view.program.rubrics.values():
        terms = weights(rubric)
        if terms is not None:
            yield from _check(view, rubric, terms)


def _check(view: View, rubric: Decl, terms: dict[str, Term]) -> Findings:
    spans: dict[str, float] = {}
    for name, term in terms.items():
        reward = view.program.rewards.get(name)
        found = reward_interval(reward, view) if reward is not None else None
        if term.weight == 0:
            message = f"the weights of `{name}` cancel"
            yield finding(message, term.span, help="remove it: its weights sum to 0")
        elif found is not None and found.is_bounded:
            spans[name] = abs(term.weight) * (found.hi - found.lo)
    if len(spans) < 2 or len(spans) < len(terms):
        return
    ordered = sorted(spans, key=lambda name: -spans[name])
    first, second = ordered[:2]
    if spans[second] and spans[first] > LARGEST * max(1.0, spans[second]):
        yield finding(
            f"`{first}` spans {spans[first]:g}, {spans[first] / spans[second]:.0f} times as much "
            "as any other term",
            terms[first].span,
            help="bring the weights within a factor of 20, or remove the small terms",
        )
