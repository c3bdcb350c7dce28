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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forgedsl.runs.packed import Packer

Event = dict[str, Any]
Reader = Callable[[Event], None]


class ReaderFailed(Exception):
    """Raised by a reader that gives up: it is told once and called no more; the run goes on."""


class EventLog:
    """Numbers, stamps, writes and hands out events. `path=None` keeps nothing on disk."""

    def __init__(self, path: Path | None = None) -> None:
        # append: a resumed run continues the file of the run before
        self._file = path.open("a", buffering=1, encoding="utf-8") if path else None
        self._readers: list[Reader] = []
        self._ids = itertools.count(1)
        self._packer = Packer()

    def subscribe(self, reader: Reader) -> None:
        """Call `reader` with every later event, in order, on the emitting thread."""
        self._readers.append(reader)

    def emit(self, kind: str, **fields: Any) -> Event:
        event: Event = {"time": time.time(), "kind": kind, **fields}
        if self._file is not None:
            self._write(self._packer.take(event))
        for reader in tuple(self._readers):
            try:
                reader(event)
            except ReaderFailed as error:
                self._readers.remove(reader)
                self.emit("warning", text=str(error))
        return event

    @contextmanager
    def span(self, kind: str, **fields: Any) -> Iterator[Event]:
        """Emit the start, yield a dict for fields that only the end knows, emit the end.

        Example:
            with events.span("sync", version=3, to="generator") as end:
                end["bytes"] = (await endpoints.sync(node, 3)).bytes
        """
        ident = next(self._ids)
        start = time.monotonic()
        self.emit(f"{kind}.start", id=ident, **fields)
        end: Event = {}
        try:
            yield end
        except BaseException as error:
            end["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            seconds = round(time.monotonic() - start, 6)
            self.emit(f"{kind}.end", id=ident, **{**fields, **end, "seconds": seconds})

    def _write(self, records: list[Event]) -> None:
        assert self._file is not None
        for record in records:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._write(self._packer.rest())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
