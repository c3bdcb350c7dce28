"""Write the run folder of a run that was started from Python: the same files as `forgec run`.

Job, folder of its inputs --open_run_folder--> job.json, forge.lock, inputs/
                                        |----> metrics.jsonl and whatever `logging` asks for
                                        `----> report.html at the end
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forgedsl.errors import CannotWriteError, writing
from forgedsl.lower import job as spec
from forgedsl.lower.lock import lock_text
from forgedsl.runs import write_report
from forgedsl_runtime.events import Event
from forgedsl_runtime.readers import close_readers, open_readers

INPUTS = "inputs"


@contextmanager
def open_run_folder(
    job: spec.Job, run_dir: Path, job_dir: Path
) -> Iterator[list[Callable[[Event], None]]]:  # fmt: skip
    """Write the files that are needed to repeat the run; yield the readers of its events."""
    with writing(run_dir):
        (run_dir / "job.json").write_text(job.model_dump_json(indent=1), encoding="utf-8")
        (run_dir / "forge.lock").write_text(lock_text(job), encoding="utf-8")
        _link_inputs(job_dir / INPUTS, run_dir / INPUTS)
    readers = open_readers(job, run_dir, quiet=True)
    try:
        yield [reader.on_event for reader in readers]
    finally:
        close_readers(readers)
    try:
        with writing(run_dir / "report.html"):
            write_report(run_dir)
    except CannotWriteError as error:
        print(f"warning: the report was not written: {error}", file=sys.stderr)


def _link_inputs(source: Path, target: Path) -> None:
    """Link the input folder into the run folder."""
    if source.is_dir() and not target.exists():
        target.symlink_to(source.resolve(), target_is_directory=True)
