"""R535 calls-paid: calling tools, or taking turns, earns about as much as the right answer.

    given = {"lookups": names.count("lookup")}           # a part of the environment counts calls
    reward lookups(r: Rollout) -> f32 = clamp(r.rewards.lookups, 0.0, 4.0)
    rubric grade { score = right + 0.5 * lookups }       # fires: four calls earn 2, the answer 1
    rubric grade { score = right + 0.1 * lookups }       # silent
    rubric grade { score = right * (0.9 + 0.1 * lookups) }               # silent
    reward effort(r: Rollout) -> f32 = clamp(r.turns / 8, 0.0, 1.0)
    rubric grade { score = right + 0.5 * effort }        # fires: turns earn 0.44

To call a tool is easier than to be right, and it is rewarded whatever the answer is: the policy
calls as often as it may, and answers anything (DeepEyes #83). Give all calls together less weight
than the answer, or multiply. Turns cost the policy nothing at all, so for turns the rule already
fires at two fifths of the reward for the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Function, RewardDecl
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import (
    place_of,
    positive_rewards,
    reward_interval,
    score_of,
    slope_in_turns,
)
from forgedsl.lint.view import View
from forgedsl.syntax.walk import names
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not view.program.environments:
        return
    used = {step.receiver for step in view.program.flow if Role.SCORES in step.roles}
    counted = {part for env in python_environments(view) for part in _counted(env)}
    followed = {part for env in python_environments(view) for part in _paid_by_call(view, env)}
    yield from _without_limit(view, followed | counted)
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        if rubric.name not in used or not score.is_known:
            continue
        calls = [name for name, reward in score.rewards.items() if _part(reward) in counted]
        calls += [name for name, r in score.rewards.items() if slope_in_turns(r, view)]
        if not calls:
            continue
        others = [name for name in score.rewards if name not in calls]
        answer = max((max(score.change_by(name), default=0.0) for name in others), default=0.0)
        for name in calls:
            pay = max(score.change_by(name, least=others), default=0.0)
            are_turns = slope_in_turns(score.rewards[name], view)
            if others and pay >= (0.4 * answer if are_turns else answer) > 0:
                what = "turns" if are_turns else "calls"
                yield finding(
                    f"{'turns' if are_turns else 'tool calls'} can earn {pay:g} through `{name}`, "
                    f"and a right answer earns {answer:g}",
                    score.score.expr.span,
                    related=(Label(text=f"counts {what}",
                                   span=place_of(score.rewards[name], view)),),
                    help=f"a smaller weight for `{name}`, or `right * (0.9 + 0.1 * {name})`",
                )  # fmt: skip


def _without_limit(view: View, parts: set[str]) -> Findings:
    """Yield rewards without a bound that a score adds, and that rise with each call of a tool."""
    positive = positive_rewards(view)
    for name, reward in view.program.rewards.items():
        interval = reward_interval(reward, view)
        if name not in positive or _part(reward) not in parts or interval is None:
            continue
        if not interval.is_bounded:
            yield finding(
                f"`{name}` rises with each call of a tool, without limit: calls can earn more than "
                "a right answer",
                positive[name],
                related=(Label(text="counts calls", span=place_of(reward, view)),),
                help=f"limit it, `clamp(..., 0.0, 0.2)`, or `right * (0.9 + 0.1 * {name})`",
            )


def _paid_by_call(view: View, env: PythonClass) -> set[str]:
    """Return the parts that a step gives as a number of calls, times any number."""
    from forgedsl.lint.follow.programs import environment_flows
    from forgedsl.lint.follow.values import CALLS

    found = set[str]()
    for event in (event for method in environment_flows(view, env) for event in method.flow.events):
        if event.kind == "call" and event.name.rpartition(".")[2] == "Step":
            rewards = event.argument("rewards", 1)
            fields = (rewards.fields or {}) if rewards is not None else {}
            found |= {part for part, value in fields.items() if CALLS in value.labels}
    return found


def _part(reward: RewardDecl) -> str:
    """Return the part of the environment that a reward reads."""
    body = reward.body
    found = names(body.statements) if isinstance(body, Function) else ()
    return next((parts[2] for parts in found if parts[1:2] == ("rewards",) and parts[2:]), "")


def _counted(env: PythonClass) -> set[str]:
    """Return the parts that a class gives as a number of calls: `names.count("lookup")`,
    `len(turn.calls)`."""
    import ast as python

    found = set[str]()
    for method in env.methods.values():
        for node in python.walk(method):
            if not isinstance(node, python.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                for each in python.walk(value) if isinstance(key, python.Constant) else ():
                    if isinstance(each, python.Call) and _counts(each, env.tools):
                        found.add(str(key.value))  # type: ignore[union-attr]
    return found


def _counts(call: python.Call, tools: frozenset[str]) -> bool:
    import ast as python

    match call:
        case python.Call(func=python.Attribute(attr="count"), args=[python.Constant(value=name)]):
            return name in tools
        case python.Call(func=python.Name(id="len"), args=[inner]):
            return python.unparse(inner) == "turn.calls"
    return False
