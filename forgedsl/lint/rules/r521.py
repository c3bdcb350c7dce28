"""R521 filter-direction: a filter that keeps nothing, or only what teaches nothing.

A group teaches where its scores differ. A filter that drops all of those and keeps groups of
equals, or one that nothing ever passes, trains on zeros or waits for ever (DAPO #22, NeMo-RL
#2431).

    filter mixed(score: [G] f32) -> bool = std(score, G) < 0.01          # fires
    filter mixed(score: [G] f32) -> bool = std(score, G) > 2.0           # fires: scores are 0 and 1
    filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0           # silent

Decided by evaluating it on groups, in the range of the score where that is known, else 0 to 1.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.groups import Probe, probe, scored_by
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.rewards import score_interval
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
ASSUMED = ((0.0, 1.0), (-1.0, 1.0))


def check(view: View) -> Findings:
    for group in view.groups:
        if group.function.kind != "filter" or group.function.span.file.startswith(STANDARD):
            continue
        name = scored_by(view, group)
        known = score_interval(name, view) if name else None
        ranges = ASSUMED if known is None or not known.is_bounded else ((known.lo, known.hi),)
        keeper = probe(view, group)
        if known is not None and known.is_point:
            continue  # which is R501
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
