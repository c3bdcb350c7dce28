"""`forgedsl.compare`: runs against each other, as `forgec compare` prints and draws them."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.errors import writing
from forgedsl.python.pages import PipelineError
from forgedsl.python.results import RunResult

if TYPE_CHECKING:
    from forgedsl.runs.compare import Best, Comparison, Group

HEIGHT = 640
"""pixels of the page in a notebook"""


class Compared:
    """Runs in groups of seeds, and the best group of each measure."""

    def __init__(self, found: Comparison) -> None:
        self._found = found

    @property
    def groups(self) -> tuple[Group, ...]:
        """Runs that differ in the seed alone: `settings`, `runs`, and `values` by measure."""
        return self._found.groups

    @property
    def best(self) -> dict[str, Best]:
        """By measure the best group, the next one, and the interval of their difference."""
        return {each.measure: each for each in self._found.best}

    def save(self, path: str | Path) -> Path:
        """Write the page with the curves."""
        from forgedsl.runs.compare import page

        path = Path(path)
        with writing(path):
            path.write_text(page(self._found), encoding="utf-8")
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


def compare(*runs: RunResult | str | Path) -> Compared:
    """Compare two runs or more, given as results or folders; the folder of a sweep is all its runs.

    Example:
        compare(first, second, "runs/third").best["reward"]

    Raises:
        PipelineError: a folder holds no run, or there are fewer than two.
    """
    from forgedsl.runs import compare as runs_compare
    from forgedsl.runs.checkpoints import no_run, with_points

    folders = [run.folder if isinstance(run, RunResult) else Path(run) for run in runs]
    folders = with_points(folders)
    for folder in folders:
        if not (folder / "job.json").is_file():
            raise PipelineError(no_run(folder))
    if len({folder.resolve() for folder in folders}) < 2:
        raise PipelineError("name at least two different runs")
    return Compared(runs_compare.compare(folders))
