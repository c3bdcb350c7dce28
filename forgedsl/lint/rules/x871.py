"""X871 one-round: of a loop over several things, only the first or the last one counts.

    for tag in TAGS:
        if tag not in response:
            return 0.0
        return 1.0                                   # fires: the loop ends in its first round
    return 1.0                                       # silent, behind the loop

    for case in cases:
        score = float(passes(code, case))            # fires: the last case decides
    return score
    return sum(passes(code, case) for case in cases) / len(cases)        # silent

An answer with the first tag alone, or a program that passes the last test alone, then gets all of
the reward, and the policy needs no more. The rule looks where control goes: a loop whose body
always returns, although a test in it returns another score; a name that each round of a loop over
the target computes anew, and that is read after the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterable

    from forgedsl.lint.follow.reached import Part
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in
    from forgedsl.lint.follow.scores import scorers

    for part, node in found_in(view, _once):
        yield finding(
            f"{part.what} returns in the first round of a loop, so it checks only the first item",
            part.span,
            related=(label(view, "returns in each round", part.file, node),),
            help="move this `return` behind the loop, so that every item is checked",
        )
    for scorer in scorers(view):
        event = next((e for flow in scorer.flows for e in flow.events if _last(e)), None)
        if event is not None:
            yield finding(
                f"{scorer.what} overwrites `{_last(event)}` in each round of a loop, so only the "
                "last round counts",
                scorer.span,
                related=(label(view, "this loop", event.file, event.node),),
                help="add up the results of all rounds, or use `all(...)`",
            )


def _once(part: Part) -> python.AST | None:
    """Return the statement with which each round of a loop returns."""
    import ast as python

    from forgedsl.lint.python_returns import first_round

    loops = (n for n in part.nodes() if isinstance(n, python.For | python.AsyncFor))
    return next((found for loop in loops if (found := first_round(loop)) is not None), None)


def _last(event: Event) -> str:
    """Return a name that each round of a loop over the target computes from the response and
    overwrites, and that is read behind the loop; "" if there is none."""
    import ast as python

    from forgedsl.lint.follow.values import READS_RESPONSE, READS_TARGET

    loop = event.node
    if event.kind != "loop" or not isinstance(loop, python.For | python.AsyncFor):
        return ""
    over = event.values[0].all
    if READS_TARGET not in over or READS_RESPONSE in over:
        return ""
    inside = [each for stmt in loop.body for each in python.walk(stmt)]
    leaves = python.Break | python.Return | python.Continue | python.Yield
    if any(isinstance(each, leaves) for each in inside):
        return ""
    read = {n.id for n in inside if isinstance(n, python.Name) and isinstance(n.ctx, python.Load)}
    added = {getattr(n.target, "id", "") for n in inside if isinstance(n, python.AugAssign)}
    for name, value in event.keywords.items():
        said = READS_RESPONSE in value.all
        if name and name not in read | added and said and name in _assigned(loop.body):
            return name
    return ""


def _assigned(body: Iterable[python.stmt]) -> set[str]:
    """Return the names that a block assigns on every path."""
    import ast as python

    found = set[str]()
    for node in body:
        match node:
            case python.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, python.Name)}
            case python.AnnAssign(target=python.Name(id=name), value=python.expr()):
                found.add(name)
            case python.If(body=then, orelse=otherwise):
                found |= _assigned(then) & _assigned(otherwise)
    return found
