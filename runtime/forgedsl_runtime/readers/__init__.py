"""Readers of the event stream: progress for people, files, and tracking services.

    EventLog --event--> Progress            terminal, or plain lines
                   |--> Rows --row--> metrics.jsonl, TensorBoard, Weights & Biases
                   `--> Samples             samples.jsonl

A reader has `on_event(event)`, called in order on the emitting thread, and `close()`. If it has
`kinds`, it is called only with events of these kinds. (Most events are spans of completions, which
few readers need.) A reader never ends a run: a service that cannot be reached is reported once,
before the run starts; a later failure is reported once, when it happens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from forgedsl.lower.job import Job
from forgedsl_runtime.events import Event, ReaderFailed


class Reader(Protocol):
    """A reader of events, as `open_readers` returns them."""

    def on_event(self, event: Event) -> None:
        """Handle one event."""

    def close(self) -> None:
        """Write what is buffered; release the terminal or file."""


class GuardedReader:
    """Wrapper of a reader: its failures do not end the run."""

    def __init__(self, name: str, reader: Reader) -> None:
        self._name = name
        self._reader = reader
        self._failed = False
        self.kinds = getattr(reader, "kinds", None)

    def on_event(self, event: Event) -> None:
        try:
            self._reader.on_event(event)
        except Exception as error:  # a tracking service may raise anything
            self._failed = True
            raise ReaderFailed(
                f"{self._words(error)}; it gets no more events of this run"
            ) from error

    def close(self) -> None:
        try:
            self._reader.close()
        except Exception as error:
            if not self._failed:
                print(f"warning: {self._words(error)} at the end of the run", file=sys.stderr)

    def _words(self, error: Exception) -> str:
        return f"{self._name} failed ({type(error).__name__}: {error})"


def open_readers(job: Job, run_dir: Path, *, quiet: bool = False) -> list[Reader]:
    """Open the readers that `job.logging` asks for; the caller subscribes and closes them.

    Example:
        readers = open_readers(job, run_dir)
        run(job, run_dir, readers=[reader.on_event for reader in readers])
        close_readers(readers)
    """
    from forgedsl_runtime.readers.progress import open_progress
    from forgedsl_runtime.readers.rows import Rows
    from forgedsl_runtime.readers.samples import Samples
    from forgedsl_runtime.readers.sinks import open_sinks

    sinks, notices = open_sinks(job, run_dir)
    readers: list[Reader] = []
    if job.logging.console and not quiet:
        readers.append(open_progress(job, notices))
    readers += [GuardedReader(sink.name, Rows(sink)) for sink in sinks]
    readers.append(GuardedReader("samples.jsonl", Samples(run_dir / "samples.jsonl")))
    return readers


def close_readers(readers: list[Reader]) -> None:
    """Close all readers, the last opened first."""
    for reader in reversed(readers):
        reader.close()
