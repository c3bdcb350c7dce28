"""report.html: one self-contained page about a run, made from its folder alone.

    RUN/{job.json, metrics.jsonl, events.jsonl, samples.jsonl} --data--> RunData
        --charts, timeline, page--> RUN/report.html

The page needs no network and no script to be read: charts are inline SVG, and a few lines of
JavaScript add hover values. Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forgedsl.runs.data import RunData


def write_report(run_dir: Path, data: RunData | None = None, beside: Path | None = None) -> Path:
    """Write `report.html` into the run folder and return its path. `data` is the run's data if it
    has been read already. With a second run `beside`, the file is `report-beside-NAME.html` and has
    both curves.

    Example:
        write_report(Path("runs/grpo_math-20261120-101500"))
    """
    from forgedsl.records import replace
    from forgedsl.runs.data import load_run
    from forgedsl.runs.page import render

    data, path = data or load_run(run_dir), run_dir / "report.html"
    if beside is not None:
        data = replace(data, beside=load_run(beside))
        path = run_dir / f"report-beside-{beside.resolve().name}.html"
    path.write_text(render(data), encoding="utf-8")
    return path
