"""Reads a run folder into `RunData`; a run that was killed has shorter files, not another format.

Spans are rebuilt from the start and end events that share an `id`. A resumed run continues the
event file: ids begin again there, so a span is closed by the next end with its kind and id. Records
of groups are read as the events they stand for (packed.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forgedsl.lower.job import Job, read_job
from forgedsl.operations.registry import working
from forgedsl.records import dataclass
from forgedsl.runs.packed import unpacked

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of work in time; `start` and `end` are unix seconds."""

    kind: str
    start: float
    end: float
    fields: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """All that a report shows."""

    folder: str
    job: Job
    rows: tuple[Row, ...]
    samples: tuple[Row, ...]
    spans: dict[str, tuple[Span, ...]]
    processes: tuple[Row, ...]
    messages: tuple[Row, ...]
    """warnings and failures"""
    drops: dict[str, int]
    """dropped groups by reason"""
    lost: dict[str, int]
    """dropped completions by reason, without those of evals"""
    errors: tuple[str, ...]
    """what rewards and samplers said when they failed, the most common first"""
    starts: tuple[float, ...]
    """when the run, or its continuation, was started"""
    begin: float
    end: float
    seconds: float
    """what the run and its continuations took, without the time between them"""
    outcome: Row
    """the run.end event; empty while running, also again, or after a kill"""
    running: bool = False
    """a process holds the folder"""
    left_out: tuple[str, ...] = ()
    """rows of the data that cannot be used, each once: the first hundred of a reason"""
    spoilt: tuple[str, ...] = ()
    """places of lines that are no JSON, such as `events.jsonl:17`"""
    ready: tuple[Row, ...] = ()
    """service.ready events"""
    restarts: tuple[Row, ...] = ()
    """service.lost and restarted events"""
    rehearsal: bool = False
    """services only took time; no number of this run is about a model"""
    usage: tuple[Row, ...] = ()
    """usage events: memory of processes, memory and load of GPUs, every some seconds"""
    beside: RunData | None = None
    """a second run, whose curves are drawn too"""


def jsonl(path: Path, spoilt: list[str]) -> Iterator[Row]:
    """The objects of a JSONL file; the last line of a killed run may be cut and is left out, and so
    are lines that a crash of the host or a disk has spoilt, whose places are added to `spoilt`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if (row := whole(line)) is not None:
                yield row
            elif line.endswith(b"\n"):
                spoilt.append(f"{path.name}:{number}")


def whole(line: bytes) -> Row | None:
    """The object of a line of JSONL; None where the line is cut, or no JSON."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:  # also of bytes that are no text
        return None
    return row if isinstance(row, dict) else None


def load_run(folder: Path) -> RunData:
    """Read everything; FileNotFoundError if the folder holds no job.json."""
    job = read_job(folder)
    spoilt: list[str] = []
    events = list(unpacked(jsonl(folder / "events.jsonl", spoilt)))
    rows, samples = (tuple(jsonl(folder / f"{n}.jsonl", spoilt)) for n in ("metrics", "samples"))
    times = [event["time"] for event in events]
    edges = [e for e in events if e["kind"] in ("run.start", "run.end")]
    # a run that was continued is not over; the lock is still held when the last report is written
    outcome = edges[-1] if edges and edges[-1]["kind"] == "run.end" else {}
    lost = [e for e in events if e["kind"] == "rollout.dropped" and "eval" not in e]
    return RunData(
        folder=folder.resolve().name,
        job=job,
        rows=rows,
        samples=samples,
        spoilt=tuple(spoilt),
        spans=spans(events),
        left_out=tuple(dict.fromkeys(str(e["row"]) for e in events if e["kind"] == "row.dropped")),
        processes=tuple(e for e in events if e["kind"] == "process.start"),
        ready=tuple(e for e in events if e["kind"] == "service.ready"),
        restarts=tuple(e for e in events if e["kind"] in ("service.lost", "restarted")),
        usage=tuple(e for e in events if e["kind"] == "usage"),
        messages=tuple(e for e in events if e["kind"] in ("warning", "failure")),
        drops=dict(Counter(e["reason"] for e in events if e["kind"] == "group.dropped")),
        lost=dict(Counter(event["reason"] for event in lost)),
        errors=tuple(text for text, _ in Counter(e["message"] for e in lost).most_common(5)),
        starts=tuple(e["time"] for e in events if e["kind"] == "run.start"),
        running=not outcome and is_running(folder),
        begin=min(times, default=0.0),
        end=max(times, default=0.0),
        seconds=sum(max(part) - min(part) for part in sessions(events)),
        outcome=outcome,
        rehearsal=any(e["kind"] == "run.start" and e.get("rehearsal") for e in events),
    )


def sessions(events: list[Row]) -> list[list[float]]:
    """The times of the events of a run, then those of each continuation."""
    found: list[list[float]] = []
    for event in events:
        if event["kind"] == "run.start" or not found:
            found.append([])
        found[-1].append(event["time"])
    return found


def spans(events: list[Row]) -> dict[str, tuple[Span, ...]]:
    """Finished spans by kind, in order of their end."""
    open_: dict[tuple[str, Any], Row] = {}
    kinds = (*(each.name for each in working()), "eval", "export")
    found: dict[str, list[Span]] = {kind: [] for kind in kinds}
    for event in events:
        kind, _, edge = event["kind"].rpartition(".")
        if kind not in found:
            continue
        if edge == "start":
            open_[kind, event["id"]] = event
        elif edge == "end" and (start := open_.pop((kind, event["id"]), None)):
            span = Span(kind=kind, start=start["time"], end=event["time"], fields=start | event)
            found[kind].append(span)
    return {kind: tuple(sorted(items, key=lambda s: s.end)) for kind, items in found.items()}


def is_running(folder: Path) -> bool:
    """True if a process holds the lock of the folder (forgedsl/cli/run_lock.py)."""
    import fcntl

    try:
        with (folder / ".running").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock, or a file system without locks
        return False
    return False


def overlap(data: RunData) -> float | None:
    """The share of optimizer steps during which at least one completion was being sampled."""
    steps, samples = data.spans["step"], sorted(data.spans["sample"], key=lambda s: s.start)
    if not steps or not samples:
        return None
    # Both lists are ordered: a step overlaps if a sample that began before its end ends after
    # its start, so the latest end among earlier starters decides.
    hits, index, latest = 0, 0, 0.0
    for step in sorted(steps, key=lambda s: s.end):
        while index < len(samples) and samples[index].start < step.end:
            latest = max(latest, samples[index].end)
            index += 1
        hits += latest > step.start
    return hits / len(steps)
