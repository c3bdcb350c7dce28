"""A313 deadline-too-short: a timeout is shorter than the work that it limits.

    schedule async { steps = 100, max_policy_age = 1, starve_timeout = 1s }          # fires
    sync trainer -> generator { timeout = 1ms }                                      # fires
    reward grade = api.score { timeout = 5s, effects = [net] }     # fires: it posts with timeout=60
    environment shop = game.Game { tool_timeout = 60s, deadline = 10s }              # fires
    schedule async { steps = 100, max_policy_age = 1, starve_timeout = 10min }       # silent

The first completions of a step take the sampling time that the plan estimates. A run whose timeout
is shorter ends with exit code 6 although nothing is wrong (verl #7155, open-instruct #691). The
rule fires below a quarter of the estimate, which assumes completions of maximum length. If the
timeout of a Python reward is shorter than that of its requests, the error of a request is lost. A
trajectory whose `deadline` is shorter than the time limit of one call of a tool ends before it has
read the result, with the reward so far. Raise the timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View, place
from forgedsl.plan.cost import time_text
from forgedsl.plan.sizes import completions
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.ir.graph import Graph
    from forgedsl.plan.plan import Plan

finding = rule(__doc__, "W")
PART = 0.25


def check(view: View) -> Findings:
    for env in view.program.environments.values():
        whole, call = env.settings.get("deadline"), env.settings.get("tool_timeout")
        if whole is None or call is None or call.origin.layer == "default":
            continue
        if whole.value is not None and whole.value < call.value:
            yield finding(
                f"a trajectory of `{env.name}` ends after {time_text(whole.value)}, and one call "
                f"of a tool may take {time_text(call.value)}",
                place(whole, env),
                help="a `deadline` for all turns together, several times `tool_timeout`",
            )
    if view.planned is None:
        return
    graph, plan = view.planned
    seconds = {stage.node: max(stage.seconds, stage.latency) for stage in plan.cost.stages}
    schedule = view.program.schedule
    sampling = max(
        (seconds.get(node.name, 0.0) for node in graph.having(Role.SAMPLES)), default=0.0
    )
    if schedule is not None:
        patience = schedule.settings["starve_timeout"]
        if patience.value is not None and patience.value < PART * sampling:
            yield finding(
                f"sampling takes about {time_text(sampling)}, and the run ends after "
                f"{time_text(patience.value)} without a group",
                place(patience, schedule),
                help=f"`starve_timeout = {max(1, round(sampling / 6))}min`",
            )
    for step in (s for s in view.program.flow if Role.TRANSFERS in s.roles):
        node = next((n for n in graph.syncs if n.span == step.span), None)
        timeout = step.settings["timeout"]
        takes = seconds.get(node.name, 0.0) * (plan.schedule.every or 1) if node else 0.0
        if timeout.value < PART * takes:
            yield finding(
                f"a sync takes about {time_text(takes)}, and its timeout is "
                f"{time_text(timeout.value)}",
                timeout.origin.span or step.span,
                help="leave `timeout` out: it is 5 minutes then",
            )
    yield from _rewards(view, graph, plan)


def _rewards(view: View, graph: Graph, plan: Plan) -> Findings:
    for name, what, takes in (*_judges(view, graph, plan), *_calls(view)):
        reward = view.program.rewards[name]
        given = reward.settings["timeout"].value
        if given < takes:
            yield finding(
                f"{what}, and the timeout of reward `{name}` is {time_text(given)}",
                place_of(reward, view, "timeout"),
                help="give the reward a longer `timeout`",
            )


def _judges(view: View, graph: Graph, plan: Plan) -> Iterator[tuple[str, str, float]]:
    """Return the seconds that a judge of the plan needs for one request's completions."""
    count = sum(completions(graph, node) for node in graph.having(Role.SAMPLES)) or 1
    for stage in plan.cost.stages:
        reward = view.program.rewards.get(stage.node)
        if reward is not None:
            settings = reward.settings
            at_a_time = settings["procs"].value * settings["concurrency"].value
            takes = stage.seconds * min(1.0, at_a_time / count)
            yield stage.node, f"its judge takes about {time_text(takes)}", PART * takes


def _calls(view: View) -> Iterator[tuple[str, str, float]]:
    """Return the timeouts of calls in a Python reward, such as requests."""
    for found in python_rewards(view):
        timed = [(use.timeout, use.name) for use in found.uses if use.timeout is not None]
        if timed:
            seconds, name = max(timed)
            yield found.reward.name, f"`{name}` waits up to {time_text(seconds)}", seconds
