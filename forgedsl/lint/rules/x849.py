"""X849 silence-pays: a wrong answer scores less than no answer.

    if not turn.calls: return Step(done=True)                            # fires: 0 for no answer
    return Step(rewards={"right": 1.0 if right else -1.0}, done=True)
    if not turn.calls: return Step(rewards={"right": -1.0}, done=True)   # silent

A reward part that no step gives is 0. If each wrong answer costs something, a trajectory that ends
without an answer is better than the mean of its group as long as most answers are wrong, so the
policy stops to answer (TRL #6427 has such a default of 0). Give the end without an answer at most
what a wrong answer gets. If the policy may abstain, give 0.0 by name: the rule fires only for a
`Step` that ends a trajectory without this part, or gives 0 where a method of the class would have
scored an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.programs import MethodFlow
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env in python_environments(view):
        found = None if env.env.body.agent or len(env.env.body.parts) != 1 else _silent(view, env)
        if found is not None:
            from forgedsl.lint.follow.programs import label

            event, worst = found
            yield finding(
                f"`{env.env.name}` gives a wrong answer {worst:g}, and 0 to a trajectory that ends "
                "without an answer",
                env.env.name_span,
                related=(label(view, "ends without one", event.file, event.node),),
                help=f'`rewards={{"{env.env.body.parts[0]}": {worst:g}}}` there too',
            )


def _silent(view: View, env: PythonClass) -> tuple[Event, float] | None:
    """Return a step that ends a trajectory without the reward part, and the best score of a wrong
    answer, if this is negative."""
    from forgedsl.lint.follow.programs import judged_environments

    part = env.env.body.parts[0]
    runs = judged_environments(view, env)
    if len(runs) != 2 or not all(any(m.flow.judged for m in run) for run in runs):
        return None
    right, wrong = ([_given(event, part) for event in _steps(run)] for run in runs)
    scored = [each for each in wrong if each is not None]
    if not scored or not all(scored):
        return None
    judged = [each - SILENT for each in scored if each - SILENT]
    rewarded = max((max(each) for each in right if each), default=0.0)
    if not judged or max(map(max, judged)) >= 0 or rewarded <= 0:
        return None
    for event in _steps(runs[1]):
        given, done = _given(event, part), event.argument("done", 2)
        ends = done is not None and done.const is True
        mixed = given is not None and given > SILENT
        if ends and (given is None or mixed):
            return event, max(map(max, judged))
    return None


SILENT = frozenset({0.0})


def _steps(run: list[MethodFlow]) -> list[Event]:
    return [e for m in run for e in m.flow.events
            if e.kind == "call" and e.name.rpartition(".")[2] == "Step"]  # fmt: skip


def _given(event: Event, part: str) -> frozenset[float] | None:
    """Return the numbers that a step can give of a part; None without the part, and nothing if they
    are unknown."""
    rewards = event.argument("rewards", 1)
    if rewards is None:
        return None
    value = (rewards.fields or {}).get(part)
    return value.numbers if value is not None else frozenset()
