"""A316 endless-run: by the plan's estimate a step takes hours, or the run months.

    rollout = generator.sample(prompt, n = 1000000000)          # fires: a step of years
    schedule async { steps = 10000000, max_policy_age = 1 }     # fires: the run takes months
    rollout = generator.sample(prompt, n = 16)                  # silent

A number with some zeros too many is valid, so such a run starts, and no step ever ends. The rule
fires for steps above 6 hours and runs above 90 days. Lower the number; `forgec plan` shows the time
of a step. If the length is intended, write `# forge: allow[A316] REASON`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.program import Decl, FlowStep, Value
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.plan.cost import time_text
from forgedsl.source import Span
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
STEP, RUN = 6 * 3600.0, 90 * 24 * 3600.0


def check(view: View) -> Findings:
    schedule = view.program.schedule
    if view.planned is None or schedule is None:
        return
    plan = view.planned[1]
    seconds, steps = plan.cost.step_seconds, plan.schedule.steps or 0
    if seconds > STEP:
        count, what, where = max(_counts(view), key=lambda found: found[0])
        yield finding(
            f"a step takes about {time_text(seconds)} by the plan: {what} is {count:,}",
            where,
            help="a smaller one, a smaller model or more devices; `forgec plan` shows its parts",
        )
    elif steps * seconds > RUN:
        yield finding(
            f"{steps:,} steps take about {time_text(steps * seconds)} by the plan, "
            f"{time_text(seconds)} each",
            place(schedule.settings["steps"], schedule),
            help="fewer steps; `forgec plan` shows what a step takes",
        )


def _counts(view: View) -> Iterator[tuple[int, str, Span]]:
    """Return the numbers that determine the length of a step, with name and span."""
    for step in view.program.flow:
        if Role.PROMPTS in step.roles:
            yield _count(step.settings["count"], f"`{step.receiver}.draw`", step)
        if Role.SAMPLES in step.roles:
            yield _count(step.settings["n"], "`n`", step)
            decl = view.program.services[step.receiver]
            tokens = decl.settings["sampling.max_tokens"]
            yield _count(tokens, f"`{decl.name}.sampling.max_tokens`", decl)
    for step in view.steps:
        decl = view.program.services[step.receiver]
        yield _count(decl.settings["batch.seq_len"], f"`{decl.name}.batch.seq_len`", decl)


def _count(setting: Value, name: str, at: FlowStep | Decl) -> tuple[int, str, Span]:
    value = setting.value if isinstance(setting.value, int) else 0
    return value, name, setting.origin.span or at.span
