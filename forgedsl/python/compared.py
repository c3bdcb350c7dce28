"""`forgedsl.compare`: runs against each other, as `forgec compare` prints and draws them."""

from __future__ import annotations

from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.errors import expect, write_text
from forgedsl.python.pages import PipelineError
from forgedsl.python.results import RunResult
from forgedsl.python.speaking import all_speak_python, speaks_python

if TYPE_CHECKING:
    from forgedsl.runs.compare import Best, Comparison, Group

HEIGHT = 640
"""pixels of the page in a notebook"""


class UnknownMeasure(PipelineError, KeyError):
    """A measure by which the runs are not compared. It is a KeyError too, as of any mapping."""


class Measures(dict[str, "Best"]):
    """The best group by measure. An error about another measure says which there are."""

    def __init__(self, found: Comparison) -> None:
        super().__init__({each.measure: each for each in found.best})
        self._found = found

    def __missing__(self, name: object) -> Best:
        from forgedsl.mistakes.suggest import did_you_mean, nearest

        found, close = self._found, ""
        if name in found.not_compared:
            why = f"{name!r} is not compared: its definition differs between the runs"
        elif name in found.measures and len(found.groups) == 1:
            why = f"{name!r} has no best group: {_one_group(found.groups[0])}"
        elif name in found.measures:
            why = f"{name!r} has no best group: only one group has it"
        else:
            close = did_you_mean(nearest(str(name), found.measures))
            why = f"the runs have no measure {name!r}"
        there = f"compared are {', '.join(self)}" if self else "no measure is compared"
        if not found.measures:
            there = "they have neither a reward nor an eval, so nothing can be compared"
        raise UnknownMeasure("; ".join(filter(None, (why, there, close))))


def _one_group(group: Group) -> str:
    """Why runs are in one group."""
    from forgedsl.runs.compare import steps_of

    seeds = {run.job.seed for run in group.runs}
    if len(seeds) == len(group.runs):
        return "the runs differ in the seed alone"
    if len(seeds) > 1:
        return "the runs differ in the seed at most"
    if len({steps_of(run) for run in group.runs}) > 1:
        return "the runs differ in the number of steps alone"
    return "the runs have the same settings and the same seed"


@all_speak_python
class Compared:
    """Runs in groups of seeds, and the best group of each measure."""

    def __init__(self, found: Comparison) -> None:
        self._found = found

    @property
    def groups(self) -> tuple[Group, ...]:
        """Runs that differ in the seed alone: `settings`, `runs`, and `values` by measure."""
        return self._found.groups

    @property
    def best(self) -> Measures:
        """By measure the best group, the next one, and the interval of their difference."""
        return Measures(self._found)

    def save(self, path: str | Path) -> Path:
        """Write the page with the curves."""
        from forgedsl.runs.compare import page

        path = Path(path)
        write_text(path, page(self._found))
        return path

    def __repr__(self) -> str:
        from forgedsl.runs.compare import render

        return render(self._found)

    def _repr_html_(self) -> str:
        from forgedsl.runs.compare import page

        return (
            f'<iframe srcdoc="{escape(page(self._found))}" width="100%" height="{HEIGHT}" '
            'style="border:0"></iframe>'
        )


@speaks_python
def compare(*runs: RunResult | str | Path) -> Compared:
    """Compare two runs or more, given as results or folders; the folder of a sweep is all its runs.

    Example:
        compare(first, second, "runs/third").best["reward"]

    Raises:
        PipelineError: a folder holds no run, or there are fewer than two.
    """
    from forgedsl.runs import compare as runs_compare
    from forgedsl.runs.checkpoints import no_run, with_points

    for run in runs:
        expect(run, RunResult | str | PathLike, "`compare` takes results and run folders")
    folders = [run.folder if isinstance(run, RunResult) else Path(run) for run in runs]
    folders = with_points(folders)
    for folder in folders:
        if not (folder / "job.json").is_file():
            raise PipelineError(no_run(folder))
    if len({folder.resolve() for folder in folders}) < 2:
        raise PipelineError("name at least two different runs")
    return Compared(runs_compare.compare(folders))
