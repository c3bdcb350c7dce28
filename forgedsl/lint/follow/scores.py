"""The scores that the Python of a program gives: their labels, and the places that give them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.ir.program import Function, PythonFunction
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.follow.files import File
from forgedsl.lint.follow.programs import environment_flows, reward_flow
from forgedsl.lint.follow.run import Flow
from forgedsl.lint.follow.values import Labels, Value
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax.walk import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A value that a program gives as a score. `control` has the labels of the tests that decide if
    it is given, `file` and `node` say where."""

    value: Value
    control: Labels
    node: ast.AST
    file: File


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A reward, environment or agent, with its runs and the scores that it gives."""

    what: str
    """its kind and name, for messages"""
    span: Span
    flows: list[Flow]
    scores: list[Score]
    is_reward: bool


def scorers(view: View) -> Iterator[Scorer]:
    """Yield the rewards, environments and agents in Python that give scores. Rewards without a
    positive weight in a score of the flow are left out, as are reward parts that nothing reads."""
    raises = positive_rewards(view)
    for found in python_rewards(view):
        if found.reward.name in raises:
            yield from _reward(view, found)
    for env in python_environments(view):
        yield _environment(view, env)


def _reward(view: View, found: PythonReward) -> Iterator[Scorer]:
    flow = reward_flow(view, found)
    if flow is not None:
        scores = [
            Score(value=r.value, control=r.control, node=r.node, file=flow.file)
            for r in flow.returned
        ]
        yield Scorer(
            what=f"reward `{found.reward.name}`",
            span=place_of(found.reward, view),
            flows=[flow],
            scores=scores,
            is_reward=True,
        )


def _environment(view: View, env: PythonClass) -> Scorer:
    runs, used = environment_flows(view, env), _parts_used(view)
    scores = []
    for run in runs:
        for event in run.flow.events:
            is_step = event.kind == "call" and event.name.rpartition(".")[2] == "Step"
            rewards = event.argument("rewards", 1) if is_step else None
            for part, value in (rewards.fields or {}).items() if rewards is not None else ():
                if used is not None and part not in used:
                    continue
                scores.append(
                    Score(value=value, control=event.control, node=event.node, file=event.file)
                )
        if run.name == "run":
            scores += [Score(value=r.value, control=r.control, node=r.node, file=run.flow.file)
                       for r in run.flow.returned]  # fmt: skip
    return Scorer(
        what=f"{env.what} `{env.env.name}`",
        span=env.env.name_span,
        flows=[run.flow for run in runs],
        scores=scores,
        is_reward=False,
    )


def _parts_used(view: View) -> set[str] | None:
    """Return the reward parts of environments that rewards read for a score; None if they are
    not known, because a reward in Python gets the whole rollout."""
    found: set[str] = set()
    for reward in view.program.rewards.values():
        if reward.settings["monitor"].value:
            continue
        if isinstance(reward.body, PythonFunction):
            inputs = inputs_of(reward.body)
            given = (
                (*inputs.by_name.values(), *inputs.by_place) if isinstance(inputs, Inputs) else ()
            )
            if "rollout" in given:
                return None
        read = names(reward.body.statements) if isinstance(reward.body, Function) else ()
        for path in read:
            if path[1:2] == ("rewards",):
                if len(path) == 2:
                    return None
                found.add(path[2])
    return found or None
