"""`forgec runs [FOLDER]`: lists the runs of a folder, their state, and their best evaluation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forgedsl.cli.parser import Parser

COLUMNS = ("run", "state", "steps", "reward", "best eval", "began")
MOST = 4
"""maximum number of columns for differing settings; --format json has all"""
MOST_TEXT = 30
"""characters of a value that are shown"""


def parser() -> Parser:
    parser = Parser("runs", command.__doc__, "[FOLDER]")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("runs"), metavar="FOLDER",
        help="folder with the runs",
    )  # fmt: skip
    parser.add_words("format", ("text", "json"), "text", dest="format_", help="output format")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(folder: Path, format_: str) -> None:
    """List the runs of a folder, the newest last.

    The reward is the mean of the last steps, as in the last lines of a run.

    Examples:
      forgec runs
      forgec runs /shared/runs --format json
    """
    if not folder.is_dir():
        text = f"there is no folder {folder}; name the folder that holds the runs"
        print(f"forgec runs: {text}", file=sys.stderr)
        raise SystemExit(2)
    paths = [path.parent for path in folder.glob("*/job.json")]
    rows = (_row(path) for path in paths)
    found = sorted(
        (row for row in rows if row is not None), key=lambda row: (row["began"] or "", row["run"])
    )
    _tell_apart(found, folder)
    if format_ == "json":
        print(json.dumps(found, indent=1))
        return
    from forgedsl.plan.text import table
    from forgedsl.runs.text import number

    def shown(row: dict[str, Any]) -> tuple[str, ...]:
        best = row["best"]
        steps = f"{row['step']}/{row['steps']}" if row["steps"] else str(row["step"])
        reward = "" if row["reward"] is None else number(row["reward"])
        evals = f"{best['eval']} {number(best['value'])} at {best['step']}" if best else ""
        told = (_text(row["differs"].get(name)) for name in names)
        return row["run"], row["state"], steps, reward, evals, (row["began"] or "")[:16], *told

    names = [name for name in found[0]["differs"] if not _is_whole(name, found)] if found else []
    names = names[:MOST]
    columns = (*COLUMNS, *(name.removeprefix("services.") for name in names))
    print("\n".join(table([columns, *map(shown, found)])) if found else f"no runs in {folder}")


def _tell_apart(rows: list[dict[str, Any]], folder: Path) -> None:
    """Add to every row the settings that differ between the runs, parameters first."""
    from forgedsl.runs.settings import differing, settings_of_all, value_at

    jobs = [json.loads((folder / row["run"] / "job.json").read_text("utf-8")) for row in rows]
    found = settings_of_all(jobs)
    order = differing(found)
    for row, job in zip(rows, found, strict=True):
        row["differs"] = {path.removeprefix("params."): value_at(job, path) for path in order}


def _is_whole(name: str, rows: list[dict[str, Any]]) -> bool:
    """True if a path is a dataset that some runs lack. The eval or service that reads it differs
    too, and has a column."""
    values = (row["differs"][name] for row in rows)
    return name.startswith("datasets.") and all(value in ("yes", None) for value in values)


def _text(value: Any) -> str:
    from forgedsl.runs.settings import shortened, written_path

    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else shortened(written_path(str(value)), MOST_TEXT)


def _row(run: Path) -> dict[str, Any] | None:
    """Return the state of a run. If its job.json is not a job, print a note and return None."""
    try:
        return row_of(run)
    except (ValueError, KeyError, TypeError, AttributeError):
        print(f"note: {run} is left out: its job.json is not a job", file=sys.stderr)
        return None


def row_of(run: Path) -> dict[str, Any]:
    """Return the state of a run from its metrics and the end of its events."""
    from forgedsl.runs.checkpoints import SESSION
    from forgedsl.runs.data import is_running, jsonl
    from forgedsl.runs.verdict import at_end

    job = json.loads((run / "job.json").read_text("utf-8"))
    rows = list(jsonl(run / "metrics.jsonl", []))
    events = run / "events.jsonl"
    last = _last(events)
    if is_running(run):
        state = "running"
    elif last is None:
        state = "not started"
    else:
        state = str(last.get("status")) if last.get("kind") == "run.end" else "killed"
    shown = next((key for row in rows for key in row if key.startswith("eval/")), "")
    name = shown.removeprefix("eval/")
    values = [
        {"eval": name, "value": row[shown], "step": _evaluated(row, name)}
        for row in rows
        if row.get(shown) is not None
    ]
    loss = any(e.get("loss") for e in job["evals"].values())
    best = (min if loss else max)(values, key=lambda each: each["value"], default=None)
    rewards = tuple((row["step"], row["reward_mean"]) for row in rows
                    if row.get("reward_mean") is not None)  # fmt: skip
    began = next(jsonl(events, []), None)
    has_target = not (run / SESSION).exists()  # a Session ends when its code ends
    return {
        "run": run.name, "state": state, "step": rows[-1]["step"] if rows else 0,
        "steps": job["schedule"]["steps"] if has_target else None, "best": best,
        "reward": at_end(rewards),
        "began": began and f"{datetime.fromtimestamp(began['time'], UTC):%Y-%m-%d %H:%M:%S} UTC",
    }  # fmt: skip


def _evaluated(row: dict[str, Any], name: str) -> int:
    """Return the step whose weights an eval measured. The record of the first step has the eval of
    the untrained model, version 0."""
    untrained = row["step"] == 1 and row.get(f"eval_version/{name}") == 0
    return 0 if untrained else int(row["step"])


def _last(path: Path) -> dict[str, Any] | None:
    """Return the last event of a run. Its line may be long."""
    from forgedsl.runs.data import whole

    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 20)))
        lines = file.read().splitlines(keepends=True)
    return whole(lines[-1]) if lines else None
