"""Compares runs. Runs that differ only in the seed are one group.

    RUN folders --load_run--> Measures of each --compare--> Comparison (groups, best by measure)
        --render--> text, --page--> one HTML page with overlaid curves

A group's value is the mean over its seeds, its spread their standard deviation. The difference of
two groups has Welch's 95 % interval, which assumes that values scatter normally.
"""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from forgedsl import surface
from forgedsl.diagnostics import counted
from forgedsl.records import dataclass
from forgedsl.runs.charts import Series, chart
from forgedsl.runs.data import RunData, load_run
from forgedsl.runs.settings import differing, settings_of_all, shortened, value_at, written_path
from forgedsl.runs.text import number
from forgedsl.runs.verdict import Points, at_end, evals, is_loss, points

REWARD = "reward"
COLORS = 6
MOST = 12
"""most settings shown as columns; where more differ, groups are named by their runs"""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""97.5 % quantiles of Student's distribution for 1, 2, ... degrees of freedom; then 1.96"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that differ in the seed alone. `values` holds the last value of each run by measure:
    the reward (mean of the last steps) and every eval."""

    settings: dict[str, Any]
    runs: tuple[RunData, ...]
    values: dict[str, tuple[float, ...]]

    @property
    def label(self) -> str:
        said = (f"{name}={value_text(value)}" for name, value in self.settings.items())
        return ", ".join(said) or "all runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best group in a measure, and by how much it is better than the next one. `low` and `high`
    are the 95 % interval of that difference, None if one of the groups has a single run."""

    measure: str
    group: str
    other: str
    by: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        if self.by == 0:
            return f"{self.measure}: {self.group} and {self.other} are equal"
        lead = f"{self.measure}: {self.group} is better than {self.other} by {number(self.by)}"
        if self.low is None:
            seeds = surface.override("run.seed=2") if surface.in_python() else "--seeds of a sweep"
            return (
                f"{lead}; a single run per group gives no confidence interval: run more seeds "
                f"({seeds})"
            )
        between = f"95% interval {number(self.low)} to {number(self.high)}"
        if self.low > 0:
            return f"{lead} ({between})"
        return f"{lead}, which may be noise ({between}); run more seeds to find out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Groups in the order in which their first runs were named."""

    groups: tuple[Group, ...]
    names: tuple[str, ...]
    """columns that tell groups apart: settings that differ, `code`, or `run` if too many differ"""
    measures: tuple[str, ...]
    best: tuple[Best, ...]
    """by measure; not those in `not_compared`"""
    num_differing: int
    not_compared: tuple[str, ...]
    """measures whose definition differs between the runs"""
    without_steps: tuple[str, ...] = ()
    """runs that are left out, because they have no steps"""

    @property
    def notes(self) -> list[str]:
        """Describe the results in sentences."""
        found = [each.text for each in self.best]
        if self.without_steps:
            found.insert(0, f"left out, without steps: {', '.join(self.without_steps)}")
        for name in self.not_compared:
            why = ("have different rewards" if name == REWARD else
                   "score this eval by different rewards, or on other data")  # fmt: skip
            found.append(f"{name}: not compared, because the runs {why}")
        found += _unlike(self.groups)
        if self.num_differing > MOST:
            found.append(f"{self.num_differing} settings differ: `forgec diff RUN RUN` lists them")
        return found


def compare(folders: Sequence[Path]) -> Comparison:
    """Read and compare runs. Those without steps are left out, if any run has steps."""
    loaded = [load_run(folder) for folder in folders]
    runs = [run for run in loaded if steps_of(run)] or loaded
    found = settings_of_all([run.job.model_dump(mode="json") for run in runs])
    paths = [path for path in differing(found) if path != "seed"]
    names = tuple(path.removeprefix("params.").removeprefix("services.") for path in paths)
    groups: dict[tuple[str, ...], list[tuple[RunData, dict[str, Any]]]] = {}
    for run, settings in zip(runs, found, strict=True):
        key = (*(str(value_at(settings, path)) for path in paths), code_of(run))
        mine = {name: value_at(settings, path) for name, path in zip(names, paths, strict=True)}
        groups.setdefault(key, []).append((run, mine))
    codes = list(dict.fromkeys(key[-1] for key in groups))
    # if settings differ too, their columns already tell the groups apart
    many = len(codes) > 1 and not paths
    made = tuple(
        _group([run for run, _ in part],
               {"run": _names([run for run, _ in part])} if len(paths) > MOST else
               part[0][1] | ({"code": f"variant {codes.index(key[-1]) + 1}"} if many else {}))
        for key, part in groups.items()
    )  # fmt: skip
    measures = tuple(dict.fromkeys(name for group in made for name in group.values))
    other = tuple(name for name in measures if _differs(name, runs))
    compared = [name for name in measures if name not in other]
    best = tuple(each for name in compared if (each := _best(name, made)) is not None)
    shown = ("run",) if len(paths) > MOST else (*names, "code") if many else names
    left_out = tuple(run.folder for run in loaded if not steps_of(run))
    return Comparison(
        groups=made, names=shown, measures=measures, best=best, num_differing=len(paths),
        not_compared=other, without_steps=() if runs is loaded else left_out,
    )  # fmt: skip


def steps_of(run: RunData) -> int:
    """The number of steps that a run has made."""
    return int(run.rows[-1]["step"]) if run.rows else 0


def _names(runs: Sequence[RunData]) -> str:
    """The first run of a group, and how many others it has."""
    return runs[0].folder + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")


def code_of(run: RunData) -> str:
    """The losses, functions and Python files of a run: runs that differ in them are not in one
    group."""
    job = run.job
    losses = {name: loss.model_dump_json() for name, loss in job.losses.items()}
    files = [each.sha256 for each in job.rewards.values()]
    files += [each.sha256 for each in job.environments.values()]
    files += [m.sha256 for each in job.rewards.values() for m in each.modules.values()]
    files += [m.sha256 for each in job.environments.values() for m in each.modules.values()]
    return f"{losses}{job.program}{files}"


def _differs(measure: str, runs: Sequence[RunData]) -> bool:
    """True if a measure is not defined alike in all runs that have it."""
    if measure == REWARD:
        return len({reward_of(run) for run in runs}) > 1
    return len({eval_of(run, measure) for run in runs if measure in run.job.evals}) > 1


def reward_of(run: RunData) -> str:
    """Return the definition of the rewards; values of different definitions cannot be compared."""
    return str([_score(run, name) for name in (*run.job.rewards, *run.job.rubrics)])


def eval_of(run: RunData, name: str) -> str:
    """Return the definition of an eval: what scores it, and the rows that it is measured on."""
    job = run.job
    found = job.evals[name]
    source = job.datasets[found.dataset].source.model_dump(exclude={"path"})
    loss = job.losses[found.loss].model_dump_json() if found.loss else ""
    return f"{_score(run, found.score) if found.score else loss}{source}"


def _score(run: RunData, name: str) -> str:
    """The definition of a reward, or of a rubric with its rewards."""
    job = run.job
    rubric = job.rubrics.get(name)
    if rubric is not None:
        parts = [_score(run, reward) for reward in rubric.rewards]
        return f"{rubric.model_dump()}{function_text(job.program, rubric.function)}{parts}"
    kept = {"kind", "function", "args", "service", "path", "sha256", "inputs", "makes"}
    reward = job.rewards[name]
    code = function_text(job.program, reward.function) if reward.kind == "program" else ""
    return f"{name}{reward.model_dump(include=kept)}{code}"


def function_text(program: str, function: str) -> str:
    """A function of the program and those that it calls, without comments."""
    known = {d.name: d for d in ast.parse(program).body if isinstance(d, ast.FunctionDef)}
    todo, found = [function], dict[str, str]()
    while todo:
        name = todo.pop()
        if name in known and name not in found:
            found[name] = ast.unparse(known[name])
            todo += [node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)]
    return str(sorted(found.items()))


def _unlike(groups: Sequence[Group]) -> list[str]:
    """Return notes on runs with different numbers of steps, and on runs of a group with the same
    seed, whose spread is not that of seeds."""
    found = []
    steps = {run.folder: steps_of(run) for g in groups for run in g.runs}
    if len(set(steps.values())) > 1:
        found.append(
            f"the runs have {min(steps.values())} to {max(steps.values())} steps: "
            "their last values are those of different steps"
        )
    for group in groups:
        seeds: dict[int, list[str]] = {}
        for run in group.runs:
            seeds.setdefault(run.job.seed, []).append(run.folder)
        found += [
            f"{' and '.join(same)} have the same seed, {seed}: +- is not the spread over seeds"
            for seed, same in seeds.items() if len(same) > 1
        ]  # fmt: skip
    return found


def _group(runs: list[RunData], settings: dict[str, Any]) -> Group:
    values: dict[str, list[float]] = {}
    for run in runs:
        reward = at_end(points(run, "reward_mean"))
        if reward is not None:
            values.setdefault(REWARD, []).append(reward)
        for name, pts in evals(run).items():
            values.setdefault(name, []).append(pts[-1][1])
    fixed = {name: tuple(found) for name, found in values.items()}
    return Group(settings=settings, runs=tuple(runs), values=fixed)


def _best(measure: str, groups: Sequence[Group]) -> Best | None:
    """The best group against the next; None where fewer than two have the measure."""
    having = [group for group in groups if measure in group.values]
    if len(having) < 2:
        return None
    sign = -1.0 if is_loss(having[0].runs[0], measure) else 1.0
    best, other = sorted(having, key=lambda g: -sign * statistics.fmean(g.values[measure]))[:2]
    a, b = best.values[measure], other.values[measure]
    by = sign * (statistics.fmean(a) - statistics.fmean(b))
    room = interval(a, b)
    return Best(
        measure=measure, group=best.label, other=other.label, by=by,
        low=None if room is None else by - room, high=None if room is None else by + room,
    )  # fmt: skip


def interval(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Half the width of Welch's 95 % interval of the difference of two means; None with less than
    two values in one of them."""
    if min(len(a), len(b)) < 2:
        return None
    parts = [statistics.variance(each) / len(each) for each in (a, b)]
    if sum(parts) == 0:
        return 0.0
    shares = [part**2 / (len(each) - 1) for part, each in zip(parts, (a, b), strict=True)]
    freedom = int(sum(parts) ** 2 / sum(shares))
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96
    return quantile * math.sqrt(sum(parts))


def value_text(value: Any) -> str:
    """A value of a setting: 3e-06, true, 8."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else shortened(written_path(str(value)), 30)


def spread_text(values: Sequence[float]) -> str:
    """`0.912 +- 0.013`, or the value of one run."""
    mean = number(statistics.fmean(values))
    return f"{mean} +- {number(statistics.stdev(values))}" if len(values) > 1 else mean


def _cell(group: Group, measure: str) -> str:
    """A measure of a group: `0.196 +- 0.008 (n = 2)` if only two of its runs have it."""
    values = group.values.get(measure, ())
    if not values:
        return "-"
    few = f" (n = {len(values)})" if len(values) < len(group.runs) else ""
    return f"{spread_text(values)}{few}"


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """The table: settings that differ, runs, steps, and each measure."""
    head = (*found.names, "runs", "steps", *found.measures)
    lines = [head]
    for group in found.groups:
        steps = sorted({steps_of(run) for run in group.runs})
        lines.append((
            *(value_text(group.settings.get(name)) for name in found.names),
            str(len(group.runs)),
            str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}",
            *(_cell(group, measure) for measure in found.measures),
        ))  # fmt: skip
    return lines


def render(found: Comparison) -> str:
    """Return the table and its notes as text."""
    from forgedsl.plan.text import table

    total = sum(len(group.runs) for group in found.groups)
    title = f"{counted(total, 'run')}, {counted(len(found.groups), 'group')}"
    kinds = "values: mean +- standard deviation over seeds, at the end of each run"
    if not found.measures:
        kinds = "nothing to compare: no run has a reward or an eval"
    return "\n".join([title, "", *table(rows(found)), "", kinds, *found.notes])


def as_data(found: Comparison) -> dict[str, Any]:
    """Groups with their runs and values, and the best of each measure, for JSON."""
    groups = [
        {"settings": g.settings, "runs": [r.folder for r in g.runs], "values": g.values}
        for g in found.groups
    ]
    names = ("measure", "group", "other", "by", "low", "high")
    best = [{name: getattr(each, name) for name in names} for each in found.best]
    return {"groups": groups, "best": best}


# ---- the page


STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fff; --faint: #8888;
  --c1: #2563c9; --c2: #d9671b; --c3: #18885c; --c4: #8d4fc4; --c5: #0f8ea3; --c6: #c9356d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaf0; --paper: #14171d;
  --c1: #6ea2f7; --c2: #f59a57; --c3: #4fc795; --c4: #bd8df0; --c5: #4cc3d6; --c6: #f07ba6; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
td, th { text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--faint); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
svg { width: 100%; } svg text { fill: var(--ink); font-size: 11px; } svg .cursor { display: none; }
.ax { text-anchor: end; } .ax.mid { text-anchor: middle; } .grid { stroke: var(--faint); }
.line { fill: none; stroke-width: 1.6; }
.raw { fill: none; opacity: .3; } .band { opacity: .15; stroke: none; }
""" + "".join(
    f".line.c{i}, .raw.c{i} {{ stroke: var(--c{i}); }} b.c{i} {{ color: var(--c{i}); }}\n"
    f".band.c{i}, circle.c{i} {{ fill: var(--c{i}); }}\n"
    for i in range(1, COLORS + 1)
)


def curve(group: Group, measure: str, color: str) -> Series | None:
    """The mean over the runs of a group, at the steps that all of them have."""
    of_runs: list[dict[float, float]] = [
        dict(points(run, "reward_mean") if measure == REWARD else evals(run).get(measure, ()))
        for run in group.runs
    ]
    steps = sorted(set.intersection(*(set(each) for each in of_runs)))
    if not steps:
        return None
    columns = [[each[step] for each in of_runs] for step in steps]
    pts: Points = tuple(
        (step, statistics.fmean(column)) for step, column in zip(steps, columns, strict=True)
    )
    band = tuple(map(statistics.stdev, columns)) if len(of_runs) > 1 else ()
    return Series(name=group.label, points=pts, spread=band, color=color)


def page(found: Comparison) -> str:
    """Return one HTML page that needs no network: table, notes, and a chart for each measure."""
    colors = [f"c{i % COLORS + 1}" for i in range(len(found.groups))]
    charts = []
    for measure in found.measures:
        made = [curve(g, measure, c) for g, c in zip(found.groups, colors, strict=True)]
        if drawn := [series for series in made if series is not None]:
            charts.append(f"<figure><h2>{escape(measure)}</h2>{chart(measure, drawn).svg}</figure>")
    head, *body = rows(found)
    legend = "".join(
        f'<li><b class="{color}">&#9644;</b> {escape(group.label)}: '
        f"{escape(', '.join(run.folder for run in group.runs))}</li>"
        for group, color in zip(found.groups, colors, strict=True)
    )
    cells = ["<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
             for tag, row in (("th", head), *(("td", row) for row in body))]  # fmt: skip
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Runs compared</title><style>{STYLE}</style></head><body>"
        f'<h1>Runs compared</h1><div class="wide"><table>{"".join(cells)}</table></div>'
        "<p>Values: mean +- standard deviation over seeds, at the end of each run. Curves: mean "
        "over the seeds; band: one standard deviation.</p>"
        f"<ul>{notes}</ul><ul>{legend}</ul>"
        f'<div class="charts">{"".join(charts)}</div></body></html>\n'
    )
