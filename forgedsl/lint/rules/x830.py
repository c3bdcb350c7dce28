"""X830 right-below-wrong: a right answer may score less than a wrong one.

    brief = 0.5 - min(len(response), LIMIT) / LIMIT      # from 0.5 down to -0.5
    return brief if right else min(0.0, brief)           # fires: -0.5 for a long right answer
    return 1.0 + brief if right else min(0.0, brief)     # silent: 0.5 and more for a right one

A right answer that is long then scores below a wrong one that is short, and the policy is trained
away from it (open-r1 #360). Let every right answer score above every wrong one. The rule compares
the ranges of the two sides of `... if right else ...`. It also follows a reward, and the steps of
an environment, twice: first every comparison with the target says that the answer is right, then
that it is wrong:

    return float(said != target)                         # fires: 0 for a right answer

    try: return -abs(float(said) - float(target))
    except ValueError: return 0.0                        # fires: as much as the right answer

The rule is silent if the only comparison is `target in response`, and the reward is 0 where it is
true. The prompt of such a task asks for a text that does not name the target.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.run import Flow
    from forgedsl.lint.follow.values import Event
    from forgedsl.lint.python_bodies import Body
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")


HELP = "give more where the comparison with the target says that the answer is right"


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import judged_rewards

    raises = positive_rewards(view)
    for found in python_rewards(view):
        node, low, high = _crossed(found) if found.reward.name in raises else (None, 0.0, 0.0)
        if node is not None:
            yield finding(
                f"reward `{found.reward.name}` can be as low as {low:g} for a right answer, and as "
                f"high as {high:g} for a wrong one",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help="add a number to the right side, so that it is always the larger one",
            )
        elif found.reward.name in raises and (failed := found.once(_failure)) is not None:
            if failed[1] > 0:
                continue  # X811 reports that an error pays
            yield finding(
                f"reward `{found.reward.name}` gives an answer that it cannot read as much as the "
                "best one",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(failed[0])),),
                help="give it less than every number that can be read",
            )
        elif found.reward.name in raises:
            best = _best(judged_rewards(view, found))
            if best is not None:
                yield finding(
                    f"reward `{found.reward.name}` is at most {best[0]:g} for a right answer, and "
                    f"up to {best[1]:g} for a wrong one",
                    place_of(found.reward, view),
                    related=(Label(text="here", span=found.definition_span),),
                    help=HELP,
                )
    for env in python_environments(view):
        part = _part(view, env)
        if part is not None:
            name, right, wrong = part
            yield finding(
                f"`{name}` of {env.what} `{env.env.name}` is at most {right:g} for a right answer, "
                f"and up to {wrong:g} for a wrong one",
                env.env.name_span,
                help=HELP,
            )


def _failure(found: PythonReward) -> tuple[python.AST, float] | None:
    """Return the statement of an `except` clause that returns a number, and this number, if no
    other score is higher and some are lower."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of

    body = body_of(found)
    failed = [
        node
        for handler in python.walk(found.definition)
        if isinstance(handler, python.ExceptHandler)
        for node in python.walk(handler)
        if isinstance(node, python.Return) and node.value is not None
    ]
    caught = {id(node.value) for node in failed}
    ranges = [body.range(value) for value in body.returned if id(value) not in caught]
    most = max((each.hi for each in ranges), default=math.inf)
    for node in failed:
        number = body.number(node.value) if node.value is not None else None
        lower = math.isfinite(most) and min(each.lo for each in ranges) < most
        if number is not None and number >= most and lower:
            return node, number
    return None


def _best(runs: list[Flow]) -> tuple[float, float] | None:
    """Return the best scores of a right and of a wrong answer, if the right one is not better."""
    if len(runs) != 2 or not all(run.judged for run in runs) or all(map(_forbids, runs)):
        return None
    from forgedsl.lint.follow.values import DEFAULT

    scores = [
        [each.value.const for each in run.returned if DEFAULT not in each.value.labels]
        for run in runs
    ]
    if len({*map(repr, scores[0]), *map(repr, scores[1])}) == 1:
        return None  # X811 reports constants
    known = [
        max(map(float, given))
        for given in scores
        if given and all(isinstance(each, int | float) for each in given)
    ]
    return (known[0], known[1]) if len(known) == 2 and known[0] <= known[1] else None


def _forbids(run: Flow) -> bool:
    """True if a run compares with the target only to give 0 where the response contains it. Such a
    task asks for a text that does not name the target, as in a riddle."""
    from forgedsl.lint.follow.values import DISTANCE, IS_RESPONSE, meet
    from forgedsl.lint.python_bodies import unpaid

    tests = [
        event
        for event in run.events
        if event.kind == "compare"
        and (meet(*event.values[:2]) or DISTANCE in event.values[0].labels)
    ]
    return bool(tests) and all(
        id(event.node) in unpaid(event.file.module) and IS_RESPONSE in event.values[1].labels
        for event in tests
    )


def _part(view: View, env: PythonClass) -> tuple[str, float, float] | None:
    """Return (name, right, wrong) of a reward part that is larger for a wrong answer than for a
    right one, or equal if it is the only part. The numbers are the largest values for both."""
    from forgedsl.lint.follow.programs import judged_environments

    runs = judged_environments(view, env)
    steps = [[e for m in run for e in m.flow.events if e.kind == "call"] for run in runs]
    if not all(any(method.flow.judged for method in run) for run in runs):
        return None
    for name in env.env.body.parts:
        best = [_numbers(events, name) for events in steps]
        if None in best:
            continue
        given = [each for each in best if each is not None]
        right, wrong = (max(max(numbers) for numbers in each) for each in given)
        if given[0] == given[1] and any(len(numbers) > 1 for numbers in given[0]):
            continue  # what decides is not known
        if right < wrong or (right == wrong and len(env.env.body.parts) == 1):
            return name, right, wrong
    return None


def _numbers(events: list[Event], part: str) -> list[frozenset[float]] | None:
    """Return the numbers that each step can give of a part; None if they are not known."""
    given = [frozenset({0.0})]
    for event in events:
        if event.name.rpartition(".")[2] != "Step":
            continue
        rewards = event.argument("rewards", 1)
        if rewards is None:
            continue
        value = (rewards.fields or {}).get(part)
        if rewards.fields is None or (value is not None and not value.numbers):
            return None
        given += [value.numbers] if value is not None else []
    return given


def _crossed(found: PythonReward) -> tuple[python.AST | None, float, float]:
    """Return the `... if right else ...` whose values overlap, with the least value for a right
    answer and the largest for a wrong one."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of, parameters

    body, targets = body_of(found), parameters(found, "target")
    for value in body.returned:
        node = body.value(value)
        if not isinstance(node, python.IfExp) or not _is_right(body, node.test, targets):
            continue
        right, wrong = body.range(node.body), body.range(node.orelse)
        if right.is_bounded and wrong.is_bounded and right.lo < wrong.hi:
            return node, right.lo, wrong.hi
    return None, 0.0, 0.0


def _is_right(body: Body, test: python.expr, targets: set[str]) -> bool:
    """True for a test that compares something with the target for equality."""
    import ast as python

    return not isinstance(test, python.UnaryOp) and any(
        isinstance(node, python.Compare)
        and all(isinstance(op, python.Eq) for op in node.ops)
        and bool(body.names(node) & targets)
        for node in body.nodes(test)
    )
