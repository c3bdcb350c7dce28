"""What `forgec run --resume` may change, and how two jobs differ."""

from __future__ import annotations

import json
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


def with_changes(old: Job, new: Job) -> Job:
    """The old job with the parts of the new one that a resume may change."""
    schedule = old.schedule.model_copy(
        update={"steps": new.schedule.steps, "epochs": new.schedule.epochs}
    )
    update = {"schedule": schedule} | {
        k: getattr(new, k) for k in ("evals", "checkpoint", "logging")
    }
    return old.model_copy(update=update).sealed()
