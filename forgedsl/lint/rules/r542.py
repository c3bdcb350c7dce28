"""R542 observations-measured: a length covers what the environment wrote, too.

    reward brief(r: Rollout) -> f32 = clamp(1.0 - len(r.response) / 4096, 0.0, 1.0)    # fires
    reward brief(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 1024, 0.0, 1.0)       # silent

`r.response` of a trajectory is everything after the first prompt: the turns of the policy, and the
observations between them. If such a length costs something, a policy that looks nothing up is
better off, whatever it answers; if it is rewarded, calls of tools are. What tools return must not
count as the policy's text (verl #6392). `r.num_tokens` counts what the policy wrote. The rule looks
at trajectories of several turns, and at rewards in Python too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Function, rewards_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import has_turns
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
HELP = "use `r.num_tokens`, which counts only the tokens that the policy wrote"


def check(view: View) -> Findings:
    for name in _of_trajectories(view):
        reward = view.program.rewards[name]
        if reward.settings["monitor"].value:
            continue
        span, related = _measured(view, name), ()
        for found in python_rewards(view) if span is None else ():
            node = found.once(_length) if found.reward is reward else None
            if node is not None:
                span = place_of(reward, view)
                related = (Label(text="this length", span=found.at(node)),)  # type: ignore[arg-type,assignment]
        if span is not None:
            yield finding(
                f"reward `{name}` measures the length of a whole trajectory, with what the "
                "environment wrote",
                span,
                related=related,
                help=HELP,
            )


def _of_trajectories(view: View) -> Iterator[str]:
    """Yield the rewards that score trajectories of several turns."""
    program = view.program
    played = {step.name for step in program.flow if has_turns(step)}
    seen = set[str]()
    for step in program.flow if played else ():
        if Role.SCORES in step.roles and any(read.edge in played for read in step.inputs):
            for name in rewards_of(program, step.receiver):
                if name not in seen:
                    seen.add(name)
                    yield name


def _measured(view: View, name: str) -> Span | None:
    """Return the place of `len(r.response)` in a reward in the language."""
    body = view.program.rewards[name].body
    for node in walk(body.statements) if isinstance(body, Function) else ():
        if isinstance(node, ast.Call) and node.function.text == "len" and len(node.args) == 1:
            text = node.args[0].value
            if isinstance(text, ast.Path) and text.parts[1:] == ("response",):
                return node.span
    return None


def _length(found: PythonReward) -> object:
    """Return a part of a score of a Python reward that is a length of the response."""
    from forgedsl.lint.python_bodies import body_of, is_length, texts_of

    body, texts = body_of(found), texts_of(found)
    parts = (node for term in body.terms() for node in body.nodes(term.node))
    return next((n for n in parts if is_length(body, n, texts)), None)  # type: ignore[arg-type]
