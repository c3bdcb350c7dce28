"""X811 reward-of-nothing: a Python function rewards its own failure, or ignores the answer.

    except ValueError:
        return 1.0               # fires: what cannot be read is worth as much as a right answer
    def score(response): print(response)                 # fires: nothing is returned
    def score(response): return 1.0                      # fires: no answer is better than another
    except ValueError:
        raise                    # silent

    return int(found[1]) if found else 8             # fires: a judge's reply without a grade

The rule also fires if some path returns nothing, or a text in place of a number, which fails the
call; if all paths return the same value; and for an environment or agent: `except ValueError:
return Step(rewards={"solved": 1.0})`.

Text that makes the parser fail is easy to write, and the policy finds it (CoursIA #10504, NeMo-RL
#431). Raise instead: then `on_error` of the rubric decides the score. The file is read, never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.lint.environments import (
    PythonClass,
    python_environments,
    rewards_of,
    scored_in,
    scores_by_return,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

finding = rule(__doc__, "W")


ALWAYS = "returns the same number for every answer"


def check(view: View) -> Findings:
    from forgedsl.lint.python_returns import wrong  # imported late: most programs have no Python

    for env in python_environments(view):
        paid = next(_paid(env), None)
        here = Label(text="here", span=env.at(paid)) if paid is not None else _failing(view, env)
        if here is not None:
            yield finding(
                f"{env.what} `{env.env.name}` gives a reward for an error",
                env.env.name_span,
                related=(here,),
                help="raise, so that `on_error` of the rubric decides; or give 0 for it",
            )
    for found in python_rewards(view):
        what, node = wrong(found.definition)
        if node is None:
            key = (_mistake, found.function.module, found.function.name)
            known = view.shared.answers
            if key not in known:
                known[key] = _mistake(view, found)
            what, here = known[key]
        else:
            here = Label(text="here", span=found.at(node))
        counts = what != ALWAYS or found.reward.name in positive_rewards(view)
        if here is not None and counts:
            yield finding(
                f"reward `{found.reward.name}` {what}",
                place_of(found.reward, view),
                related=(here,),
                help="compare the answer, and return what the comparison says"
                if "same" in what
                else "return 0 where there is no grade, or raise"
                if "grade" in what
                else "take the answer out of the response, and compare it"
                if "looks" in what
                else "raise, so that `on_error` of the rubric decides; return a number otherwise",
            )


def _mistake(view: View, found: PythonReward) -> tuple[str, Label | None]:
    """Return the mistake that a symbolic run of the reward shows, and its place: it rewards an
    error or a grade that it cannot read, ignores the response, or always returns the same
    number."""
    from forgedsl.lint.follow.programs import failing_rewards, label, reward_flow
    from forgedsl.lint.follow.values import (
        EXIT,
        FILE,
        NET,
        OUTPUT,
        PAID,
        READS_RESPONSE,
        READS_TARGET,
        ROLLOUT,
        UNKNOWN,
    )

    flow = reward_flow(view, found)
    if flow is None:
        return "", None
    for handler, _, run in failing_rewards(view, found):
        scores = [each for each in run.returned if each.taken]
        if scores and all(_is_paid(each.value.const) for each in scores):
            return "gives a reward for an error", label(view, "here", flow.file, handler)
    for each in flow.returned:
        if {PAID, NET} <= each.value.labels:
            return "rewards a grade that it cannot read", label(view, "here", flow.file, each.node)
    unread = [each for each in flow.returned if each.value.const is UNKNOWN]
    reads = frozenset().union(*(each.value.all | each.control for each in flow.returned))
    inputs = inputs_of(found.function)
    given = inputs.by_name.values() if isinstance(inputs, Inputs) else ()
    has_columns = any(where.startswith(("column", "row")) for where in given)
    outside = {NET, FILE, ROLLOUT, EXIT, OUTPUT}
    is_known = bool(unread) and not flow.is_cut and not outside & reads
    is_known &= not has_columns  # a column may hold the answer of another model
    if is_known and READS_TARGET in reads and READS_RESPONSE not in reads:
        return "never looks at the response", label(view, "here", flow.file, unread[0].node)
    constants = [each.value.const for each in flow.returned]
    decides = any(event.kind == "compare" for event in flow.events)
    is_same = len(set(map(repr, constants))) == 1 and constants[0] is not UNKNOWN
    if is_same and isinstance(constants[0], int | float):
        what = "returns the same number on every path" if decides else ALWAYS
        return what, label(view, "here", flow.file, flow.returned[-1].node)
    return "", None


def _failing(view: View, env: PythonClass) -> Label | None:
    """Return where an environment gives a reward on a path through `except`."""
    from forgedsl.lint.follow.programs import failing_environments, label

    for handler, _, methods in failing_environments(view, env):
        for method in methods:
            for event in method.flow.events:
                if event.taken and any(map(_is_paid, rewards_of(event))):
                    return label(view, "here", method.flow.file, handler)
    return None


def _is_paid(const: object) -> bool:
    return isinstance(const, int | float) and const > 0


def _paid(env: PythonClass) -> Iterator[python.AST]:
    """Yield what gives a positive reward inside of `except`."""
    import ast as python

    for method in env.methods.values():
        for handler in python.walk(method):
            if not isinstance(handler, python.ExceptHandler):
                continue
            for place, numbers in scored_in(handler):
                is_score = isinstance(place, python.Call) or scores_by_return(env, method)
                if is_score and any(number > 0 for number in numbers):
                    yield place
