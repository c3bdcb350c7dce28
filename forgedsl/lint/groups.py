"""Advantages and filters for rules, which probe them on small groups of scores.

GroupView -> Probe: scores of a group -> advantages of its siblings, or whether it is kept
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.ir.program import FlowStep
from forgedsl.lint.rewards import score_interval
from forgedsl.lint.view import GroupView, View
from forgedsl.losses.group_evaluation import evaluate
from forgedsl.losses.reductions import over_step
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

SIBLINGS = 8, 64
"""number of completions per prompt: default, and maximum that is probed"""
TOKENS = 100.0
"""value of inputs that are not scores: a length in tokens"""
ASSUMED = ((0.0, 1.0), (-1.0, 1.0))
"""ranges of scores assumed if nothing bounds them"""
Scores = list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Evaluates a function of a group. Scores are 0 and 1; those of `others` are between."""

    group: GroupView
    size: int
    scores: frozenset[str]
    """the parameters that are scores"""
    known: dict[tuple[object, ...], Scores]
    """results by scores and node, which all functions of one structure share"""

    def __call__(self, scores: Scores, node: int | None = None) -> Scores:
        key = (*scores, node)
        if key not in self.known:
            self.known[key] = self._evaluated(scores, node)
        return self.known[key]

    def _evaluated(self, scores: Scores, node: int | None) -> Scores:
        tree = self.group.located.tree
        inputs = {
            field.name: scores if field.name in self.scores else [TOKENS] * len(scores)
            for field in tree.fields
        }
        return evaluate(tree, inputs or {"": scores}, self.size, node) if scores else []

    @property
    def mixed(self) -> Mapping[str, Scores]:
        """Groups with different scores, by their description."""
        n = self.size
        return {
            "one answer is right": [1.0] + [0.0] * (n - 1),
            "half of the answers are right": [1.0] * (n // 2) + [0.0] * (n - n // 2),
            "all answers but one are right": [1.0] * (n - 1) + [0.0],
        }

    @property
    def dead(self) -> Mapping[str, Scores]:
        return {"all are wrong": [0.0] * self.size, "all are right": [1.0] * self.size}

    @property
    def others(self) -> Mapping[str, Scores]:
        n = self.size
        near = [0.5] * (n - 1) + [0.501]
        graded = [i / max(1, n - 1) for i in range(n)]
        return {**self.dead, "all but one score alike": near, "scores rise evenly": graded}


def probe(view: View, group: GroupView) -> Probe:
    """Return a probe of a function as the flow calls it."""
    found = view.group_size
    step = call(view, group)
    size = int(found.lo) if found.is_point else SIBLINGS[0]
    names = [field.name for field in group.function.fields]
    scores = {i.argument for i in step.inputs if _is_score(view, i.edge)} if step else set()
    wanted = frozenset(scores or names[:1])
    least = 2 if over_step(group.function) and size == 1 else size
    size = min(least, SIBLINGS[1])
    known = view.shared.facts(group.located).answers.setdefault((Probe, size, wanted), {})
    return Probe(group=group, size=size, scores=wanted, known=known)


def call(view: View, group: GroupView) -> FlowStep | None:
    """Return the statement of the flow that calls a function."""
    functions = view.program.functions
    calls = (step for step in view.program.flow if Role.COMPUTES in step.roles)
    return next((s for s in calls if functions[s.receiver] is group.function), None)


def score_ranges(view: View, group: GroupView) -> tuple[tuple[float, float], ...]:
    """Return the ranges (least, greatest) of scores that the flow passes to a function; `ASSUMED`
    if they are unknown."""
    key = (score_ranges, group.function.name)
    if key not in view.answers:
        name = scored_by(view, group)
        known = score_interval(name, view) if name else None
        is_known = known is not None and known.is_bounded
        view.answers[key] = ((known.lo, known.hi),) if known and is_known else ASSUMED
    found: tuple[tuple[float, float], ...] = view.answers[key]
    return found


def _is_score(view: View, edge: str) -> bool:
    return any(step.name == edge and Role.SCORES in step.roles for step in view.program.flow)


def scored_by(view: View, group: GroupView) -> str:
    """Return the rubric or reward whose scores the flow passes to a function; "" if there is
    none."""
    step = call(view, group)
    edges = [i.edge for i in step.inputs] if step is not None else []
    scores = [s.receiver for s in view.program.flow if Role.SCORES in s.roles and s.name in edges]
    return scores[0] if scores else ""
