"""Reads a run folder into `RunData`. A killed run has shorter files in the same format.

Spans are rebuilt from start and end events with the same `id`. A resumed run appends to the event
file and starts ids anew, so a span is closed by the next end event of its kind and id. Records of
groups are unpacked to events (packed.py).
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
from forgedsl.runs.checkpoints import SESSION
from forgedsl.runs.packed import unpacked

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of work; `start` and `end` are unix times in seconds."""

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
    """dropped completions by reason, without evals"""
    errors: tuple[str, ...]
    """the five most common error messages of rewards and samplers, the most common first"""
    starts: tuple[float, ...]
    """start times of the run and of its continuations"""
    begin: float
    end: float
    seconds: float
    """total seconds of the run and its continuations, without the pauses"""
    outcome: Row
    """the run.end event; empty if the run (or its continuation) still runs or was killed"""
    running: bool = False
    """True if a process has the lock of the folder"""
    left_out: tuple[str, ...] = ()
    """unusable rows of the data, each once; at most a hundred per reason"""
    spoilt: tuple[str, ...] = ()
    """places of lines that are not JSON, such as `events.jsonl:17`"""
    ready: tuple[Row, ...] = ()
    """service.ready events"""
    restarts: tuple[Row, ...] = ()
    """service.lost and restarted events"""
    rehearsal: bool = False
    """True for a rehearsal: its numbers say nothing about a model"""
    is_session: bool = False
    """True for a Session of Python, which may do more or fewer steps than the file has"""
    usage: tuple[Row, ...] = ()
    """periodic usage events: memory of processes, memory and load of GPUs"""
    proofs: tuple[Row, ...] = ()
    """lines of proofs.jsonl"""
    beside: RunData | None = None
    """a second run whose curves are drawn too"""


def jsonl(path: Path, spoilt: list[str]) -> Iterator[Row]:
    """Read the objects of a JSONL file. An incomplete last line (of a killed run) is left out, as
    are lines corrupted by a crash, whose places are added to `spoilt`."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if (row := whole(line)) is not None:
                yield row
            elif line.endswith(b"\n"):
                spoilt.append(f"{path.name}:{number}")


def whole(line: bytes) -> Row | None:
    """Parse a line of JSONL; None if it is incomplete or not JSON."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:  # bytes that are not UTF-8, too
        return None
    return row if isinstance(row, dict) else None


def load_run(folder: Path) -> RunData:
    """Read a run folder. Raises FileNotFoundError if it has no job.json."""
    job = read_job(folder)
    spoilt: list[str] = []
    events = list(unpacked(jsonl(folder / "events.jsonl", spoilt)))
    rows, samples, proofs = (
        tuple(jsonl(folder / f"{n}.jsonl", spoilt)) for n in ("metrics", "samples", "proofs")
    )
    times = [event["time"] for event in events]
    edges = [e for e in events if e["kind"] in ("run.start", "run.end")]
    # a continued run has not ended; the lock is still held while the final report is written
    outcome = edges[-1] if edges and edges[-1]["kind"] == "run.end" else {}
    lost = [e for e in events if e["kind"] == "rollout.dropped" and "eval" not in e]
    return RunData(
        folder=folder.resolve().name,
        job=job,
        rows=rows,
        samples=samples,
        proofs=proofs,
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
        is_session=(folder / SESSION).exists(),
        rehearsal=any(e["kind"] == "run.start" and e.get("rehearsal") for e in events),
    )


def sessions(events: list[Row]) -> list[list[float]]:
    """Return the event times of the run and of each continuation."""
    found: list[list[float]] = []
    for event in events:
        if event["kind"] == "run.start" or not found:
            found.append([])
        found[-1].append(event["time"])
    return found


def spans(events: list[Row]) -> dict[str, tuple[Span, ...]]:
    """Return finished spans by kind, in order of their end."""
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
    """True if a process has the lock of the folder (forgedsl/cli/run_lock.py)."""
    import fcntl

    try:
        with (folder / ".running").open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a file system without locks
        return False
    return False


def status_of(data: RunData) -> str:
    """Return how the run ended; "running" or "killed" if it has not said so."""
    if data.outcome:
        return str(data.outcome["status"])
    return "running" if data.running else "killed"


def start_ups(data: RunData) -> list[tuple[float, float]]:
    """Return when the run and each of its continuations began, and their first steps; without those
    that did no step."""
    begins = data.starts or (data.begin,)
    steps = [span.start for span in data.spans["step"]]
    found = []
    for begin, until in zip(begins, (*begins[1:], float("inf")), strict=True):
        first = min((start for start in steps if begin <= start < until), default=None)
        if first is not None:
            found.append((begin, first))
    return found


def overlap(data: RunData) -> float | None:
    """Return the fraction of optimizer steps during which some completion was being sampled."""
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
