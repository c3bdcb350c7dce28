"""The schedule of a run: steps, credits, window and the worst policy age.

    flow rates + schedule settings -> SchedulePlan

Errors: A301 staleness-unbounded (asynchronous without `max_policy_age`), A302 age-bound-exceeded
(no lag keeps the worst age within it), F110 missing-setting (no length).
"""

from __future__ import annotations

from typing import Any

from forgedsl.diagnostics import Label, Reporter, counted, error
from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import Decl, Program
from forgedsl.operations.registry import operation
from forgedsl.plan.staleness import Staleness, bound, plan_async
from forgedsl.records import dataclass
from forgedsl.settings import Auto
from forgedsl.source import Span
from forgedsl.types.flow import Role

AGE = "schedule.max_policy_age"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan:
    """`every` is None in a graph without weight sync, where no item has a policy version."""

    mode: str
    steps: int | None
    epochs: float | None
    staleness: Staleness
    every: int | None
    max_policy_age: int | None
    on_stale: str
    starve_timeout: float | None
    restarts: int

    @property
    def length(self) -> str:
        """Return the length of the run as text, e.g. "500 steps"."""
        if self.steps is not None:
            return counted(self.steps, "step")
        return f"{self.epochs:g} epoch{'' if self.epochs == 1 else 's'}"

    @property
    def text(self) -> str:
        """Return lines of text: length, credits, bound."""
        head = f"{self.mode}, {self.length}"
        if self.every is None:
            return f"{head}; no weight sync, so samples have no age"
        limit = "" if self.max_policy_age is None else f", allowed {self.max_policy_age}"
        return f"{head}\n{self.staleness.text}{limit}"


def plan_schedule(program: Program, graph: Graph, reporter: Reporter) -> SchedulePlan | None:
    """Compute credits and window for the flow's rates; None after reporting a mistake."""
    decl = program.schedule
    steps = epochs = None
    if decl is not None:
        steps, epochs = _setting(decl, "steps"), _setting(decl, "epochs")
    if decl is None or (steps is None and epochs is None):
        where = decl.span if decl else graph.step.span
        reporter.report(
            error(
                "F110",
                "missing-setting",
                "the schedule has no length",
                where,
                help="set `steps = 500` or `epochs = 1` in `schedule`",
            )
        )
        return None
    staleness = _staleness(decl, graph, reporter)
    if staleness is None or not _replayable(program, graph, staleness, reporter):
        return None
    return SchedulePlan(
        mode=decl.label or "sync", steps=steps, epochs=epochs, staleness=staleness,
        every=_every(graph), max_policy_age=_setting(decl, "max_policy_age"),
        on_stale=_setting(decl, "on_stale") or "drop",
        starve_timeout=_setting(decl, "starve_timeout"),
        restarts=_setting(decl, "restarts"),
    )  # fmt: skip


def looser(program: Program, graph: Graph, schedule: SchedulePlan) -> dict[str, int]:
    """Return the settings that allow one more batch under way: the policy age that this needs, and
    what depends on it."""
    now, decl = schedule.staleness, program.schedule
    assert decl is not None
    fraction = float(_setting(decl, "window") or 0.0)
    more = bound(prompts=now.prompts, lag=now.lag + 1, fraction=fraction, every=now.every)
    return {AGE: more.age_bound, **_age_settings(program, graph, more.age_bound)}


def _age_settings(program: Program, graph: Graph, age_bound: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in graph.nodes:
        found |= operation(node.op).age_settings(program, node, age_bound)
    return found


def items_per_step(graph: Graph) -> int:
    """Return the groups (or batches) that one optimizer step consumes."""
    return sum(graph.quota(source) for source in graph.sources)


def _staleness(decl: Decl, graph: Graph, reporter: Reporter) -> Staleness | None:
    prompts = items_per_step(graph)
    every = _every(graph)
    if every is None:  # items have no policy version; the next step is prepared while one runs
        plan = bound(prompts=prompts, lag=1)
        return Staleness(
            prompts=prompts, lag=plan.lag, credits=plan.credits, window=plan.window, every=1,
            age_bound=0,
        )  # fmt: skip
    if decl.label != "async":
        return bound(prompts=prompts, lag=0, every=every)
    allowed = _setting(decl, "max_policy_age")
    fraction = float(_setting(decl, "window") or 0.0)
    if allowed is None:
        least = bound(prompts=prompts, lag=1, fraction=fraction, every=every).age_bound
        reporter.report(
            error(
                "A301",
                "staleness-unbounded",
                "an asynchronous schedule needs `max_policy_age`",
                decl.span,
                notes=("without it, rollouts may come from policies of any age",),
                help=f"`max_policy_age = {least}` allows one step of overlap",
            )
        )
        return None
    found = plan_async(prompts=prompts, max_age=allowed, fraction=fraction, every=every)
    if found is None:
        _report_exceeded(decl, graph, prompts, allowed, fraction, every, reporter)
    return found


def _report_exceeded(
    decl: Decl,
    graph: Graph,
    prompts: int,
    allowed: int,
    fraction: float,
    every: int,
    reporter: Reporter,
) -> None:
    least = bound(prompts=prompts, lag=1, fraction=fraction, every=every)
    age = decl.settings["max_policy_age"].origin
    related = [Label(text=f"{prompts} groups per step are drawn here", span=graph.sources[0].span)]
    if every > 1:
        related.append(Label(text=f"weights are synced every {every} steps", span=_sync(graph)))
    helps = [f"allow `max_policy_age = {least.age_bound}`", "write `schedule sync`"]
    if fraction > 0 and bound(prompts=prompts, lag=1, every=every).age_bound <= allowed:
        helps.insert(0, "remove `window`")
    reporter.report(
        error(
            "A302",
            "age-bound-exceeded",
            f"any overlap exceeds the allowed policy age {allowed}: the lowest possible worst age "
            f"is {least.age_bound}",
            age.span or decl.span,
            related=tuple(related),
            notes=tuple(least.text.splitlines()),
            help=", or ".join(helps),
        )
    )


def _replayable(program: Program, graph: Graph, staleness: Staleness, reporter: Reporter) -> bool:
    """True if groups can be young enough for their replay buffer. A group can first be drawn one
    step after it was trained on.
    """
    bound_, formula = staleness.age_bound, staleness.formula
    found = [
        problem
        for node in graph.nodes
        for problem in operation(node.op).check_age(program, node, bound_, formula)
    ]
    for problem in found:
        reporter.report(problem)
    return not found


def _every(graph: Graph) -> int | None:
    """Return the steps between syncs to the samplers of the flow. Syncs only for evals do not
    count."""
    samplers = {node.target for node in graph.having(Role.SAMPLES)}
    syncs = [node for node in graph.syncs if node.settings["target"] in samplers]
    return max(map(sync_every, syncs), default=None)


def sync_every(node: Node) -> int:
    return int(node.settings.get("every", 1))


def _sync(graph: Graph) -> Span:
    return max(graph.syncs, key=sync_every).span


def _setting(decl: Decl, key: str) -> Any:
    found = decl.settings.get(key)
    return None if found is None or isinstance(found.value, Auto) else found.value
