"""R508 weight-scale: one term of a rubric drowns the others, or two terms cancel.

    score = 100.0 * correct + 0.1 * thinking         # fires: a span of 100 beside one of 0.1
    score = correct - thinking                       # fires: doing both scores like doing neither

A term counts by its span, weight times range of the reward. More than 20 times the others, and the
others are noise.
"""

from forgedsl.diagnostics import Label
from forgedsl.hir.ir import Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import Term, reward_interval, weights
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
            yield finding(message, term.span, help="it has no part in the score")
        elif found is not None and found.is_bounded:
            spans[name] = abs(term.weight) * (found.hi - found.lo)
    if len(spans) < 2 or len(spans) < len(terms):
        return
    ordered = sorted(spans, key=lambda name: -spans[name])
    first, second = ordered[:2]
    if spans[second] and spans[first] > LARGEST * spans[second]:
        yield finding(
            f"`{first}` spans {spans[first]:g}, {spans[first] / spans[second]:.0f} times as much "
            "as any other term",
            terms[first].span,
            help="bring the weights within a factor of 20, or remove the small terms",
        )
    signs = {name: terms[name].weight > 0 for name in spans}
    if len(spans) == 2 and signs[first] != signs[second] and spans[first] == spans[second]:
        yield finding(
            f"`{first}` and `{second}` cancel: both together score like neither",
            rubric.settings["score"].origin.span or rubric.name_span,
            related=(Label(text="of opposite sign", span=terms[second].span),),
            help="give them different weights",
        )
