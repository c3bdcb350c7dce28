"""D649 no-turn-after-tool: one turn, in an environment with tools.

    rollout = generator.play(prompt, env = shop, n = 8, max_turns = 1)     # fires: `shop` has tools
    rollout = generator.play(prompt, env = shop, n = 8, max_turns = 4)     # silent

A tool is called in one turn, and what it returns is read in the next. With one turn the policy
never sees a result, so that a call is a wasted answer (openai-agents-python #170). Allow at least
two turns. The rule is silent if `step` of the class never runs tools (`call_tools`): then the call
itself is judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Label
from forgedsl.ir.program import EnvironmentDecl, Value
from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.source import Span

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for who, turns, env, span in _plays(view):
        offers = env.body.tools or env.body.served
        if turns.value == 1 and offers and not _judges_calls(view, env):
            tools = ", ".join(f"`{tool.name}`" for tool in env.body.tools) or "those of a server"
            yield finding(
                f"{who} has one turn, and never sees what the tools of `{env.name}` return",
                turns.origin.span or span,
                related=(Label(text=f"its tools: {tools}", span=env.name_span),),
                help="`max_turns = 2` or more: a call in one turn, its result in the next",
            )


def _plays(view: View) -> Iterator[tuple[str, Value, EnvironmentDecl, Span]]:
    """Yield what plays in an environment, with its number of turns."""
    found = [
        ("a trajectory", step.settings, step.span)
        for step in view.program.flow
        if "env" in step.settings and "max_turns" in step.settings
    ]
    found += [(f"eval `{e.name}`", e.settings, e.name_span) for e in view.program.evals.values()]
    for who, settings, span in found:
        ref = settings["env"].value
        env = view.program.environments.get(getattr(ref, "name", str(ref)))
        if env is not None:
            yield who, settings["max_turns"], env, span


def _judges_calls(view: View, env: EnvironmentDecl) -> bool:
    """True if the class has a `step` that runs no tool: it judges the call itself."""
    import ast as python

    for played in python_environments(view):
        step = played.methods.get("step") if played.env is env else None
        if step is not None:
            names = {n.attr for n in python.walk(step) if isinstance(n, python.Attribute)}
            return "call_tools" not in names
    return False
