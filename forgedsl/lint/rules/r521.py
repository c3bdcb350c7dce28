"""R521 filter-direction: a filter keeps no group, or only groups with equal scores.

A group gives a gradient only if its scores differ. A filter that keeps only groups with equal
scores trains on zeros; one that drops everything waits for ever (DAPO #22, NeMo-RL #2431). Turn the
comparison around, or correct its bound.

    filter mixed(score: [G] f32) -> bool = std(score, G) < 0.01          # fires
    filter mixed(score: [G] f32) -> bool = std(score, G) > 2.0           # fires: scores are 0 and 1
    filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0           # silent

The rule evaluates the filter on groups, with scores in their known range, else from 0 to 1.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.groups import Probe, probe, score_ranges
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for group in view.groups:
        if group.function.kind != "filter" or group.function.span.file.startswith(STANDARD):
            continue
        ranges, keeper = score_ranges(view, group), probe(view, group)
        if ranges[0][0] == ranges[0][1]:
            continue  # a constant score is R501
        wrong = {_wrong(keeper, low, high) for low, high in ranges}
        if keeper.size > 1 and "" not in wrong:
            low, high = ranges[0]
            yield finding(
                f"`{group.function.name}` {min(wrong)}",
                view.program.spans.get(group.function.name, group.function.span),
                notes=(f"tried on groups of {keeper.size} with scores from {low:g} to {high:g}",),
                help="keep the groups whose scores differ: `std(score, G) > 0.0`",
            )


def _wrong(keeper: Probe, low: float, high: float) -> str:
    def kept(groups: dict[str, list[float]]) -> bool:
        scaled = ([low + (high - low) * s for s in group] for group in groups.values())
        return any(keeper(scores)[0] for scores in scaled)

    if kept({**keeper.mixed, "": keeper.others["scores rise evenly"]}):
        return ""
    return "keeps only groups of equal scores" if kept({**keeper.dead}) else "keeps no group"
