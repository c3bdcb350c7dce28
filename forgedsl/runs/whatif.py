"""What a what-if shows: scores, advantages and losses as they were and as they would be.

Steps --summarize--> Summary --render--> text
                             --page--> one HTML page that needs no network
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from html import escape
from itertools import chain
from operator import itemgetter
from typing import Any

from forgedsl.diagnostics import counted
from forgedsl.records import dataclass
from forgedsl.runs.charts import Series, chart
from forgedsl.runs.compare import STYLE
from forgedsl.runs.text import number

SHOWN = 8
"""completions shown whose score changes most"""
SIDES = ("before", "after")
TOLERANCE = 1e-9
"""scores that differ by less are equal"""


Values = Sequence[float | None]
"""a quantity of each completion; None where there is none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """Recorded completions, a column for each quantity. `before` and `after` are scores. `parts`
    (rewards) and `fields` (numbers that losses read, such as the advantage) have two columns for
    each name, before and after."""

    group: Sequence[int]
    sibling: Sequence[int]
    row: Sequence[int]
    prompt: Sequence[str]
    response: Sequence[str]
    target: Sequence[str]
    before: Values
    after: Values
    parts: Mapping[str, tuple[Values, Values]]
    fields: Mapping[str, tuple[Values, Values]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A completion that is shown, with both of its scores."""

    before: float
    after: float
    prompt: str
    response: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossValues:
    """A loss in one step. `by_age` and `by_length` (largest number of tokens) hold its reports and
    the number of trained tokens. `gradient` is the norm of its gradient by the log-probs."""

    step: int
    name: str
    loss: float
    reports: Mapping[str, float]
    gradient: float
    by_age: Mapping[int, Mapping[str, float]]
    by_length: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step, as it was (`before`) and as it would be."""

    step: int
    groups: int
    kept_before: int
    kept_after: int
    completions: Completions
    before: tuple[LossValues, ...]
    after: tuple[LossValues, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A quantity before and after, over completions that have both values."""

    name: str
    count: int
    mean: tuple[float, float]
    spread: tuple[float, float]
    correlation: float | None
    changed: float
    """share of completions whose value differs"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    steps: tuple[Step, ...]
    lines: tuple[Line, ...]
    only: tuple[tuple[str, str, float], ...]
    """quantities that only one side has: name, "before" or "after", mean"""
    dead: tuple[float, float]
    """share of groups of the batches whose scores are all equal"""
    most: tuple[Example, ...]
    """completions whose score changes most"""


def summarize(steps: Sequence[Step]) -> Summary:
    """Compare all steps."""
    scores = [[*chain.from_iterable(getattr(s.completions, n) for s in steps)] for n in SIDES]
    columns = {"score": scores}
    columns |= {f"reward {name}": both for name, both in _columns(steps, "parts").items()}
    columns |= _columns(steps, "fields")
    lines, only = [], []
    for name, (old, new) in columns.items():
        both = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
        if both:
            lines.append(_line(name, both))
            continue
        for side, values in zip(SIDES, (old, new), strict=True):
            if alone := [value for value in values if value is not None]:
                only.append((name, side, statistics.fmean(alone)))
    return Summary(
        steps=tuple(steps), lines=tuple(lines), only=tuple(only), most=tuple(_most(steps)),
        dead=(_dead(steps, "before"), _dead(steps, "after")),
    )  # fmt: skip


def _columns(steps: Sequence[Step], kind: str) -> dict[str, list[list[float | None]]]:
    """Join the columns of all steps, by name; a step may lack a name."""
    tables = [getattr(step.completions, kind) for step in steps]
    found: dict[str, list[list[float | None]]] = {}
    for name in dict.fromkeys(chain.from_iterable(tables)):
        both: list[list[float | None]] = [[], []]
        for step, table in zip(steps, tables, strict=True):
            lacks = [None] * len(step.completions.row)
            for side, values in zip(both, table.get(name, (lacks, lacks)), strict=True):
                side += values
        found[name] = both
    return found


def _most(steps: Sequence[Step]) -> Iterator[Example]:
    """Yield the completions whose score changes most, with the largest change first."""
    changes = (
        (abs(after - before), step.completions, i)
        for step in steps
        for i, (before, after) in enumerate(
            zip(step.completions.before, step.completions.after, strict=True)
        )
        if before is not None and after is not None
    )
    for change, of, i in heapq.nlargest(SHOWN, changes, key=itemgetter(0)):
        before, after = of.before[i], of.after[i]
        if change > TOLERANCE and before is not None and after is not None:
            yield Example(
                before=before, after=after, prompt=of.prompt[i], response=of.response[i],
                target=of.target[i],
            )  # fmt: skip


def _line(name: str, both: Sequence[tuple[float, float]]) -> Line:
    old, new = [a for a, _ in both], [b for _, b in both]
    return Line(
        name=name, count=len(both), mean=(statistics.fmean(old), statistics.fmean(new)),
        spread=(_deviation(old), _deviation(new)), correlation=_correlation(old, new),
        changed=sum(abs(a - b) > TOLERANCE for a, b in both) / len(both),
    )  # fmt: skip


def _deviation(values: Sequence[float]) -> float:
    """Return what `statistics.pstdev` returns, which takes each value by itself: scores repeat."""
    counts, total = Counter(values), len(values)
    if not all(map(math.isfinite, counts)):
        return statistics.pstdev(values)
    sums: Counter[int] = Counter()
    squares: Counter[int] = Counter()
    for value, count in counts.items():
        numerator, denominator = value.as_integer_ratio()
        sums[denominator] += numerator * count
        squares[denominator**2] += numerator**2 * count
    mean, square = (
        sum((Fraction(n, d) for d, n in of.items()), Fraction()) / total for of in (sums, squares)
    )
    variance: Fraction = square - mean * mean
    with localcontext(prec=400):  # so many digits that the result is rounded once
        return float((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())


def _correlation(old: Sequence[float], new: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None if a side is constant."""
    if len(old) < 2 or min(old) == max(old) or min(new) == max(new):
        return None
    return statistics.correlation(old, new)


def _dead(steps: Sequence[Step], side: str) -> float:
    scores: dict[tuple[int, int], set[float]] = {}
    for of in (step.completions for step in steps):
        for group, row, value in zip(of.group, of.row, getattr(of, side), strict=True):
            if value is not None:
                scores.setdefault((group, row), set()).add(value)
    return sum(len(found) == 1 for found in scores.values()) / max(1, len(scores))


# ---- text


def render(found: Summary, title: str) -> str:
    """Return the tables as text."""
    from forgedsl.plan.text import table

    blocks = [title, "\n".join(table(score_rows(found), right=range(1, 8)))]
    blocks.append("\n".join(notes(found)))
    for name, rows in loss_tables(found).items():
        blocks.append("\n".join([name, *table(rows, right=range(1, 4))]))
    if found.most:
        blocks.append("\n".join(["scores that change most", *map(_sample_text, found.most)]))
    return "\n\n".join(block for block in blocks if block) + "\n"


def score_rows(found: Summary) -> list[tuple[str, ...]]:
    head = ("", "before", "after", "sd before", "sd after", "correlation", "changed", "count")
    rows: list[tuple[str, ...]] = [head]
    for line in found.lines:
        rows.append((
            line.name, *(f"{value:.4f}" for value in (*line.mean, *line.spread)),
            "-" if line.correlation is None else f"{line.correlation:.3f}",
            f"{100 * line.changed:.1f}%", str(line.count),
        ))  # fmt: skip
    for name, side, mean in found.only:
        values = (f"{mean:.4f}", "-") if side == "before" else ("-", f"{mean:.4f}")
        rows.append((name, *values, "-", "-", "-", "-", "-"))
    return rows


def notes(found: Summary) -> list[str]:
    """Say how batches change."""
    groups = sum(step.groups for step in found.steps)
    kept = [sum(getattr(step, f"kept_{side}") for step in found.steps) for side in SIDES]
    dead = " -> ".join(f"{100 * share:.1f}%" for share in found.dead)
    lines = [
        f"groups in batches: {kept[0]} -> {kept[1]} of {counted(groups, 'recorded group')}",
        f"groups whose completions all have one score: {dead}",
    ]
    have, want = (sum(len(getattr(s, side)) for s in found.steps) for side in SIDES)
    if want < have:
        lines.append(
            f"losses after: {want} of {counted(len(found.steps), 'step')}; the others would train "
            "on completions that the run did not train on, whose log-probs are not recorded"
        )
    if not have and not want:
        lines.append("losses: none, because the run has recorded no log-probs of its trainer")
    return lines


def loss_tables(found: Summary) -> dict[str, list[tuple[str, ...]]]:
    """Return tables of the losses: means over the steps, then reports by age and by length."""
    sides = {side: [v for s in found.steps for v in getattr(s, side)] for side in SIDES}
    if not any(sides.values()):
        return {}
    rows: list[tuple[str, ...]] = [("", *SIDES)]
    names = dict.fromkeys(n for values in sides.values() for v in values for n in v.reports)
    rows.append(("loss", *(_mean_text(values, lambda v: v.loss) for values in sides.values())))
    rows.append((
        "gradient by log-probs",
        *(_mean_text(values, lambda v: v.gradient) for values in sides.values()),
    ))  # fmt: skip
    for name in names:
        of_name = partial(_report_of, name)
        rows.append((name, *(_mean_text(values, of_name) for values in sides.values())))
    tables = {"losses, mean over steps": rows}
    for what, words in (("by_age", "age"), ("by_length", "tokens, at most")):
        for name in names:
            made = _split_rows(sides, what, name)
            if len(made) > 1:
                tables[f"{name} {what.replace('_', ' ')}"] = [(words, *SIDES), *made]
    return tables


def _report_of(name: str, values: LossValues) -> float | None:
    return values.reports.get(name)


def _split_rows(
    sides: Mapping[str, Sequence[LossValues]], what: str, name: str
) -> list[tuple[str, ...]]:
    keys = sorted({k for values in sides.values() for v in values for k in getattr(v, what)})
    rows = []
    for key in keys:
        cells = []
        for values in sides.values():
            parts = [p for v in values if (p := getattr(v, what).get(key)) and name in p]
            weight = sum(part["tokens"] for part in parts)
            cells.append(
                number(sum(p[name] * p["tokens"] for p in parts) / weight) if weight else "-"
            )
        rows.append((str(key), *cells))
    return rows


def _mean_text(values: Sequence[LossValues], of: Callable[[LossValues], float | None]) -> str:
    known = [value for each in values if (value := of(each)) is not None and math.isfinite(value)]
    return number(statistics.fmean(known)) if known else "-"


def _sample_text(each: Example) -> str:
    prompt, response = (_short(text) for text in (each.prompt, each.response))
    return (
        f"  {each.before:.3f} -> {each.after:.3f}  {prompt!r}  {response!r}  target {each.target}"
    )


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def as_data(found: Summary) -> dict[str, Any]:
    """Return the summary for JSON."""
    return {
        "scores": [
            {"name": line.name, "count": line.count, "before": line.mean[0], "after": line.mean[1],
             "sd_before": line.spread[0], "sd_after": line.spread[1],
             "correlation": line.correlation, "changed": line.changed}
            for line in found.lines
        ],
        "only": [dict(zip(("name", "side", "mean"), row, strict=True)) for row in found.only],
        "dead_groups": dict(zip(SIDES, found.dead, strict=True)),
        "steps": [
            {"step": s.step, "groups": s.groups, "kept_before": s.kept_before,
             "kept_after": s.kept_after,
             **{side: [{"loss": v.name, "value": v.loss, "gradient": v.gradient,
                        "reports": dict(v.reports)} for v in getattr(s, side)] for side in SIDES}}
            for s in found.steps
        ],
    }  # fmt: skip


# ---- page


def page(found: Summary, title: str) -> str:
    """Return one HTML page: tables, curves over steps, distributions, completions."""
    figures = [
        f"<figure><h2>{escape(made.title)}</h2>{made.svg}</figure>" for made in _charts(found)
    ]
    tables = [_html_table("scores and advantages", score_rows(found))]
    tables += [_html_table(name, rows) for name, rows in loss_tables(found).items()]
    samples: list[tuple[str, ...]] = [("before", "after", "prompt", "response", "target")]
    samples += [
        (f"{c.before:.3f}", f"{c.after:.3f}", c.prompt, c.response, c.target) for c in found.most
    ]
    tables.append(_html_table("scores that change most", samples) if len(samples) > 1 else "")
    said = "".join(f"<p>{escape(line)}</p>" for line in notes(found))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>{said}"
        f'{tables[0]}<div class="charts">{"".join(figures)}</div>{"".join(tables[1:])}</html>\n'
    )


def _html_table(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    return f'<h2>{escape(title)}</h2><div class="wide"><table><tr>{cells}</tr>{lines}</table></div>'


def _charts(found: Summary) -> list[Any]:
    made = []
    over_steps: dict[str, Callable[[Step, str], float | None]] = {"score": _mean_score}
    for values in [v for s in found.steps for v in (*s.before, *s.after)]:
        for name in values.reports:
            over_steps[name] = partial(_report, name)
        over_steps["loss"] = partial(_loss, "loss")
        over_steps["gradient by log-probs"] = partial(_loss, "gradient")
    for name, of in over_steps.items():
        curves = [
            Series(name=side, color=f"c{i + 1}", points=pts)
            for i, side in enumerate(SIDES)
            if (pts := tuple((float(s.step), v) for s in found.steps
                             if (v := of(s, side)) is not None and math.isfinite(v)))
        ]  # fmt: skip
        if curves:
            made.append(chart(name, curves))
    return made


def _mean_score(step: Step, side: str) -> float | None:
    known = [value for value in getattr(step.completions, side) if value is not None]
    return statistics.fmean(known) if known else None


def _report(name: str, step: Step, side: str) -> float | None:
    return next((v.reports[name] for v in getattr(step, side) if name in v.reports), None)


def _loss(name: str, step: Step, side: str) -> float | None:
    return next((getattr(v, name) for v in getattr(step, side)), None)
