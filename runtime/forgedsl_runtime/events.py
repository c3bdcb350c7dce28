"""The event stream of a run: everything observable, in order.

    controller, services --emit--> EventLog --Packer--> events.jsonl (a line per group, flushed)
                                            `-> readers: progress, metrics.jsonl, report, ...

An event is a flat JSON object with `time` (unix seconds), `kind` and the fields of the kind; the
kinds are listed in docs/design/contracts.md. `span` writes `<kind>.start` and `<kind>.end` with a
common `id`; the end carries `seconds`, and `error` if the work failed or was cancelled.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forgedsl.errors import RunError
from forgedsl.runs.packed import Packer

Event = dict[str, Any]
Reader = Callable[[Event], None]
BLOCK = 1 << 16


def cut_half_line(path: Path) -> None:
    """Cut off an incomplete last line, left by a killed run or a full disk."""
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            end = start + found + 1 if found >= 0 else start
            if found >= 0:
                break
        if end < size:
            file.truncate(end)


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: if the disk is full or the process is killed, the old text
    stays."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


class ReaderFailed(Exception):
    """Raised by a reader that gives up. The error is reported once, and the reader is not called
    again; the run goes on."""


def _reads(reader: Reader, kind: str) -> bool:
    kinds = getattr(getattr(reader, "__self__", None), "kinds", None)
    return kinds is None or kind in kinds


@cache
def _edges(kind: str) -> tuple[str, str]:
    """Return the kinds of the events that start and end a span."""
    return f"{kind}.start", f"{kind}.end"


class Span:
    """Start and end event around some work; see `EventLog.span`."""

    __slots__ = ("_end", "_fields", "_id", "_kind", "_log", "_start")

    def __init__(self, log: EventLog, kind: str, ident: int, fields: Event) -> None:
        self._log = log
        self._kind = kind
        self._id = ident
        self._fields = fields
        self._end: Event = {}

    def __enter__(self) -> Event:
        self._start = time.monotonic()
        kind, _ = _edges(self._kind)
        self._log.take({"time": time.time(), "kind": kind, "id": self._id, **self._fields})
        return self._end

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _, ended = _edges(self._kind)
        event: Event = {
            "time": time.time(), "kind": ended, "id": self._id, **self._fields, **self._end
        }  # fmt: skip
        if error is not None:
            event["error"] = f"{type(error).__name__}: {error}"
        event["seconds"] = round(time.monotonic() - self._start, 6)
        self._log.take(event)


class EventLog:
    """Writes events to a file and hands them to readers. `path=None` keeps nothing on disk."""

    whole = True
    """False once an event could not be written"""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        # append: a resumed run continues the file of the run before
        self._file = path.open("a", buffering=1, encoding="utf-8") if path else None
        if path is not None:
            cut_half_line(path)
        self._readers: list[Reader] = []
        self._by_kind: dict[str, tuple[Reader, ...]] = {}
        """by kind of event: its readers. A kind is added at its first event"""
        self._ids = itertools.count(1)
        self._packer = Packer()

    def subscribe(self, reader: Reader) -> None:
        """Call `reader` with every later event, in order, on the emitting thread. If it is a method
        of an object with `kinds`, it is called with events of these kinds only."""
        self._readers.append(reader)
        self._by_kind.clear()

    def emit(self, kind: str, **fields: Any) -> Event:
        """Write an event and hand it to the readers.

        Raises:
            RunError: it could not be written. Later events reach the readers only.
        """
        event: Event = {"time": time.time(), "kind": kind, **fields}
        self.take(event)
        return event

    def take(self, event: Event) -> None:
        """Write an already built event and hand it to the readers; see `emit`."""
        records = self._packer.take(event) if self._file is not None else None
        failed = self._write(records) if records else None
        kind = event["kind"]
        readers = self._by_kind.get(kind)
        if readers is None:
            readers = self._by_kind[kind] = tuple(r for r in self._readers if _reads(r, kind))
        for reader in readers:
            try:
                reader(event)
            except ReaderFailed as error:
                self._readers.remove(reader)
                self._by_kind.clear()
                self.emit("warning", text=str(error))
        if failed is not None:
            raise RunError(
                f"cannot write {self._path}: {failed.strerror}",
                remedy="free some space there, then continue the run from its last checkpoint",
            ) from failed

    def _write(self, records: Sequence[Event]) -> OSError | None:
        if self._file is None or not self.whole:
            return None
        try:
            for record in records:
                self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        except OSError as error:
            self.whole = False
            return error
        return None

    def span(self, kind: str, **fields: Any) -> Span:
        """Emit the start, yield a dict for fields that only the end knows, emit the end.

        Example:
            with events.span("sync", version=3, to="generator") as end:
                end["bytes"] = (await endpoints.sync(node, 3)).bytes
        """
        return Span(self, kind, next(self._ids), fields)

    def close(self) -> None:
        if self._file is not None:
            self._write(self._packer.rest())  # events of groups that did not end
            try:
                self._file.close()
            except OSError:
                if self.whole:  # otherwise the error was raised before
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
