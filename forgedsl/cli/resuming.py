"""What `forgec run --resume` may change, and how two jobs differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli.words import UsageError
from forgedsl.runs.checkpoints import last_step

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

CHANGEABLE = ("schedule.steps", "schedule.epochs", "evals", "checkpoint", "logging")
"""a longer or otherwise observed run is still the same run"""
DERIVED = ("content_hash", "compiler", "summary", "topology", "origins")
"""text that follows from the rest"""


def load_run_job(run_dir: Path) -> Job:
    """The job of a run folder that has a checkpoint to continue from."""
    from forgedsl.cli.planning import read_job
    from forgedsl.cli.words import SideError

    path = run_dir / "job.json"
    if not path.is_file():
        raise UsageError(f"{run_dir} is no run folder: it has no job.json")
    try:
        job = read_job(path)
    except SideError as error:
        raise UsageError(str(error)) from error
    if not last_step(run_dir):
        raise UsageError(
            f"{run_dir} has no checkpoint to continue from; start it again in another folder"
        )
    return job


def split(found: list[str], allowed: bool) -> tuple[list[str], list[str]]:
    """(differences that stop a resume, differences that `--allow numerics` takes on: settings of
    optimizers; what else a param changes is a difference of its own)."""
    taken = [line for line in found if allowed and _of_optimizer(line)]
    if not taken:
        return found, []
    taken += [line for line in found if line.startswith("params.")]
    return [line for line in found if line not in taken], taken


def _of_optimizer(line: str) -> bool:
    path = line.partition(":")[0].split(".")
    return path[0] == "services" and path[2:3] == ["optimizer"] and path[3:4] != ["kind"]


def note_changes(run_dir: Path, taken: list[str]) -> None:
    """Say what the run goes on with, and keep it in RUN/changes.jsonl."""
    if not taken:
        return
    step = last_step(run_dir)
    for line in taken:
        print(f"from step {step + 1} on: {line}", file=sys.stderr)
    with (run_dir / "changes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"after_step": step, "changes": taken}) + "\n")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything that is not a container."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{index}")
    else:
        yield path, value


def differences(old: Job, new: Job) -> list[str]:
    """`path: before -> after` for every difference that a resume may not make."""
    before, after = (
        dict(leaves(old.model_dump(mode="json"))),
        dict(leaves(new.model_dump(mode="json"))),
    )
    skip = CHANGEABLE + DERIVED
    return [
        f"{path}: {short(before.get(path))} -> {short(after.get(path))}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
        and not any(path == name or path.startswith(f"{name}.") for name in skip)
    ]


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def with_changes(old: Job, new: Job, *, numerics: bool = False) -> Job:
    """The old job with the parts of the new one that a resume may change."""
    schedule = old.schedule.model_copy(
        update={"steps": new.schedule.steps, "epochs": new.schedule.epochs}
    )
    update = {"schedule": schedule} | {
        k: getattr(new, k) for k in ("evals", "checkpoint", "logging")
    }
    if numerics:
        update |= {"services": new.services, "params": new.params}
    return old.model_copy(update=update).sealed()
