"""The protocol of a tracking service, and what all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from forgedsl.lower.job import Job, Logging
from forgedsl_runtime.readers.rows import Row, Sink


class Tracker(Protocol):
    """A tracking service. `name` is the name of its block in `logging` and of its Python module.
    `package` is the package that pip installs."""

    name: str
    package: str

    def settings(self, logging: Logging) -> Any:
        """Its settings in a job; None: off."""

    def open(self, settings: Any, job: Job, run_dir: Path) -> Sink | str:
        """Start a run at the service and return its sink. If this is impossible, return the reason,
        or raise an exception whose text is the reason."""


class RunSink:
    """Base class of sinks whose run has `log(values, step)`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def resume(self, step: int) -> None:
        """Do nothing: these services accept a step twice, or a resumed run is a new run there."""

    def write(self, row: Row) -> None:
        self._run.log({tag(k): v for k, v in numbers(row).items()}, step=row["step"])


def opened(tracker: Tracker, job: Job, run_dir: Path) -> Sink | str | None:
    """Return the sink, the reason why there is none, or None where the job asks for none."""
    settings = tracker.settings(job.logging)
    if settings is None:
        return None
    try:
        return tracker.open(settings, job, run_dir)
    except ImportError:
        name, package = tracker.name, tracker.package
        return f"{name} is not installed, so nothing is sent (pip install {package})"
    except Exception as error:  # no error of a tracking service may end a run
        cause = " ".join(str(error).split())[:300] or type(error).__name__
        return f"{tracker.name} cannot be reached, so nothing is sent ({cause})"


def numbers(row: Row) -> dict[str, float]:
    """Return the numeric fields, as floats."""
    return {k: float(v) for k, v in row.items() if k != "step" and isinstance(v, (int, float))}


def tag(name: str) -> str:
    """Return the chart tag of a field; fields without a section are grouped under `run`."""
    return name if "/" in name else f"run/{name}"


def config_of(job: Job) -> dict[str, Any]:
    """Return the settings shown with a run: parameters, seed, hash of the job."""
    return {"params": job.params, "seed": job.seed, "hash": job.content_hash}
