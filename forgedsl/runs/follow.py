"""Follows the events of a run folder from another terminal or host.

RUN/events.jsonl --since its last start--> events, until run.end or the lock is released
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forgedsl.runs.data import whole
from forgedsl.runs.packed import unpacked

Event = dict[str, Any]
SECONDS = 0.3


def last_start(path: Path) -> int:
    """Return the offset in events.jsonl of the last session; a continued run has several."""
    found = at = 0
    if path.is_file():
        with path.open("rb") as file:
            for line in file:
                if b'"run.start"' in line and (whole(line) or {}).get("kind") == "run.start":
                    found = at
                at += len(line)
    return found


def follow(
    path: Path, take: Callable[[Event], None], over: Callable[[], bool], *, since: int = 0
) -> int | None:
    """Pass events from byte `since` to the reader as they are written. Return the exit code of
    `run.end`, or None if the run is `over` without one."""
    ended, rest = False, b""
    while True:
        ended = over()  # checked before the last read, so that no event is missed
        if path.is_file():
            with path.open("rb") as file:
                file.seek(since)
                new = file.read()
            since += len(new)
            *lines, rest = (rest + new).split(b"\n")
            for record in (whole(line + b"\n") for line in lines):
                for event in unpacked([record] if record is not None else []):
                    take(event)
                    if event["kind"] == "run.end":
                        return int(event["code"])
        if ended:
            return None
        time.sleep(SECONDS)
