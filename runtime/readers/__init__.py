"""Readers of the event stream: what a person, a file or a tracking service sees of a run.

    EventLog --event--> Progress            terminal, or plain lines
                   |--> Rows --row--> metrics.jsonl, TensorBoard, Weights & Biases
                   `--> Samples             samples.jsonl

A reader has `on_event(event)`, called in order on the emitting thread, and `close()`. It never
fails a run: what cannot be reached is said once, before the run starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from forgedsl.lower.job import Job
from forgedsl.runtime.events import Event


class Reader(Protocol):
    """What `open_readers` subscribes to the event log."""

    def on_event(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Write what is still held back and give the terminal or file back."""


def open_readers(job: Job, run_dir: Path, *, quiet: bool = False) -> list[Reader]:
    """Open the readers that `job.logging` asks for; the caller subscribes and closes them.

    Example:
        readers = open_readers(job, run_dir)
        run(job, run_dir, readers=[reader.on_event for reader in readers])
        close_readers(readers)
    """
    from forgedsl.runtime.readers.progress import open_progress
    from forgedsl.runtime.readers.rows import Rows
    from forgedsl.runtime.readers.samples import Samples
    from forgedsl.runtime.readers.sinks import open_sinks

    sinks, notices = open_sinks(job, run_dir)
    readers: list[Reader] = []
    if job.logging.console and not quiet:
        readers.append(open_progress(job, notices))
    readers.append(Rows(sinks))
    readers.append(Samples(run_dir / "samples.jsonl"))
    return readers


def close_readers(readers: list[Reader]) -> None:
    """Close all, the last opened first."""
    for reader in reversed(readers):
        reader.close()
