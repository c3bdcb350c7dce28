"""R509 group-too-small: a baseline over a group needs two completions or more, and an epsilon.

With one completion the group mean is the score itself, so every advantage is 0. Division by a
standard deviation without an epsilon is a division by 0 if all completions have the same score.
With groups of one, every loss was NaN (DeepAnalyze #116); in CoursIA #10603, 70 % of groups of two
had equal scores.

    rollout = generator.sample(prompt, n = 1)
    adv     = group_norm(score)                                # fires

    advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / std(r, G)     # fires: no epsilon
    advantage norm(r: [G] f32) -> [G] f32 = r / (mean(r, G) + 0.01)    # silent for scores from 0 up

    advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + 1e-12)   # fires

An epsilon below the rounding error of f32 does not help: equal scores of 0.1 have a mean that is
off by 1e-9. Sample at least two completions; add `1e-6` to the divisor.
"""

import math

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label
from forgedsl.ir.program import FlowStep
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.groups import probe, score_ranges
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.view import GroupView, View
from forgedsl.losses.reductions import over_step
from forgedsl.losses.tree import GROUP_REDUCTIONS, SIBLING_REDUCTIONS, reachable
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")
TINY = 1e-9
ROUNDING = 1e-8
"""error of an f32 mean of scores up to 1"""
MOST = 0.6
"""An advantage this large from rounding errors alone shows that an epsilon is too small. With an
epsilon of 1e-8 it is 0.5."""
ACROSS = GROUP_REDUCTIONS | SIBLING_REDUCTIONS


def check(view: View) -> Findings:
    flow = view.program.flow
    calls = [step for step in flow if Role.COMPUTES in step.roles]
    functions = view.program.functions
    for group in view.groups:
        if group.function.kind != "advantage":
            continue
        step = next((s for s in calls if functions[s.receiver] is group.function), None)
        small = [] if step is None else _small_groups(flow, step)
        if small and step is not None and _reduces_over_group(group):
            yield _too_small(step, small[0])
        else:
            yield from _no_epsilon(view, group)


def _small_groups(flow: tuple[FlowStep, ...], step: FlowStep) -> list[FlowStep]:
    """Return the samplers, among those a statement depends on, with n = 1."""
    by_name = {s.name: s for s in flow if s.name is not None}
    pending, seen = [step], {step.name}
    found = []
    while pending:
        current = pending.pop()
        if Role.SAMPLES in current.roles and current.settings["n"].value < 2:
            found.append(current)
        edges = {read.edge for read in current.inputs} - seen
        seen |= edges
        pending += [by_name[edge] for edge in sorted(edges) if edge in by_name]
    return found


def _reduces_over_group(group: GroupView) -> bool:
    compared = SIBLING_REDUCTIONS if over_step(group.function) else GROUP_REDUCTIONS
    return any(value.op in compared for value in group.located.tree.values)


def _too_small(step: FlowStep, sample: FlowStep) -> Diagnostic:
    return finding(
        f"`{step.receiver}` compares the completions of a group, but a group has only one",
        sample.settings["n"].origin.span or sample.span,
        related=(Label(text="compares them", span=step.span),),
        help="`n = 8`",
    )


def _no_epsilon(view: View, group: GroupView) -> Findings:
    """Return findings for divisors over a group that can be 0."""
    tree, analysis = group.located.tree, group.analysis
    for node, value in enumerate(tree.values):
        chain = group.located.chains[node]
        tiny = value.op == "div" and _rounds_up(view, group, node)
        if tiny and chain and isinstance(chain[0], ast.Binary):
            yield finding(
                "what is added here is below the rounding errors of equal scores",
                chain[0].right.span,
                notes=("the f32 mean of equal scores is off by about 1e-8: divided by this, it is "
                       "a large advantage",),
                help="add `1e-6`, or at least `1e-8`; under a root, `1e-12`",
            )  # fmt: skip
            continue
        if value.op != "div" or analysis.guarded(node, value.args[1]).nonzero:
            continue
        cone = reachable(tree.values, [value.args[1]])
        if not any(tree.values[inner].op in ACROSS for inner in cone):
            continue
        chain = group.located.chains[node]
        divisor = chain[0].right if chain and isinstance(chain[0], ast.Binary) else None
        if divisor is None or divisor.span.file.startswith(STANDARD):
            continue
        if not _vanishes(view, group, value.args[1]):
            continue
        yield finding(
            "this is 0 for a group whose completions have equal scores",
            divisor.span,
            help="add an epsilon: `(std(r, G) + 1e-6)`",
            fix=_add_epsilon(divisor.span),
        )


def _rounds_up(view: View, group: GroupView, node: int) -> bool:
    """True if a quotient is defined for equal scores, and rounding errors of their mean make it
    large: an epsilon, a floor or a term under a root is too small."""
    tree = group.located.tree
    cone = reachable(tree.values, [tree.values[node].args[1]])
    spread = any(tree.values[inner].op in ACROSS for inner in cone)
    if not spread or any(field.type.tokens for field in tree.fields):
        return False
    of_group = probe(view, group)
    for low, high in score_ranges(view, group)[:1]:
        level = low + (high - low) / 2
        near = [level + ROUNDING * (-1) ** i for i in range(of_group.size)]
        same = of_group([level] * of_group.size, node)
        if max(map(abs, same), default=1.0) < TINY and max(map(abs, of_group(near, node))) > MOST:
            return True
    return False


def _vanishes(view: View, group: GroupView, node: int) -> bool:
    """True if a value is 0, or changes sign, for groups with equal scores."""
    of_group = probe(view, group)
    for low, high in score_ranges(view, group):
        levels = (low + (high - low) * part / 4 for part in range(5))
        found = [of_group([level] * of_group.size, node)[0] for level in levels]
        if any(map(math.isnan, found)) or not (min(found) > TINY or max(found) < -TINY):
            return True
    return False


def _add_epsilon(span: Span) -> Fix:
    start, end = Span(span.file, span.start, span.start), Span(span.file, span.end, span.end)
    edits = (Edit(text="(", span=start), Edit(text=" + 1e-6)", span=end))
    return Fix(message="add 1e-6", edits=edits, safe=False)
