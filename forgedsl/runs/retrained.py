"""What `forgec whatif --train` shows: metrics of steps as the run has them, and trained again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forgedsl.records import dataclass
from forgedsl.runs.text import number

HIDDEN = (
    "policy_version",
    "skipped",
    "kernel",
    "routes_changed",
    "experts_load",
    "trainer_peak_gib",
)
"""keys of a step's metrics that are not compared"""
GAP = "gap/age_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrained:
    """One step. `metrics` are empty if the other file leaves no group of it in the batch."""

    step: int
    recorded: Mapping[str, Any]
    metrics: Mapping[str, Any]
    samples: int = 0

    @property
    def gap(self) -> float | None:
        """Mean difference, before the step, between the log-probs of the trainer and those of the
        recorded sampler, for the youngest samples."""
        return _gap(self.metrics)

    @property
    def pairs(self) -> dict[str, tuple[Any, Any]]:
        """Metrics of the step, as recorded and as trained again."""
        names = [name for name in self.metrics if name not in HIDDEN and not name.startswith(GAP)]
        return {name: (self.recorded.get(name), self.metrics[name]) for name in names}


def _gap(metrics: Mapping[str, Any]) -> float | None:
    ages = [name.removeprefix(GAP) for name in metrics if name.startswith(GAP)]
    youngest = min((int(age) for age in ages if age.isdecimal()), default=None)
    return None if youngest is None else metrics[f"{GAP}{youngest}"]


def table(found: Sequence[Retrained]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table: a metric in a step, before and after."""
    yield "step", "", "run", "trained again"
    for each in found:
        shown = str(each.step)
        for name, pair in each.pairs.items():
            yield shown, name, *map(_text, pair)
            shown = ""
        yield shown, "gap to the sampler", *map(_text, (_gap(each.recorded), each.gap))


def render(found: Sequence[Retrained], title: str) -> str:
    """Return the table as text, with notes on what limits the comparison."""
    from forgedsl.plan.text import table as columns

    lines = [title, "", *columns([*table(found)], right=range(2, 4)), ""]
    empty = [str(each.step) for each in found if not each.metrics]
    if empty:
        lines.append(f"no group is left in the batch of step {', '.join(empty)}: not trained")
    gaps = [each.gap for each in found if each.gap is not None]
    if len(found) > 1 and gaps:
        lines.append(
            "the completions are those of the run: log-probs of this trainer differ from their "
            f"sampler's by {number(gaps[-1])} at the last step"
        )
    return "\n".join(lines).rstrip() + "\n"


def as_data(found: Sequence[Retrained]) -> list[dict[str, Any]]:
    """Return the steps for JSON."""
    return [
        {"step": each.step, "samples": each.samples, "gap": each.gap,
         "metrics": {name: {"run": old, "again": new} for name, (old, new) in each.pairs.items()}}
        for each in found
    ]  # fmt: skip


def _text(value: Any) -> str:
    return "-" if value is None else number(value) if isinstance(value, float) else str(value)
