"""Destinations of metrics rows: metrics.jsonl, TensorBoard, Prometheus, Weights & Biases.

`open_sinks` returns the sinks that a job declares, and a notice for each that is not available.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from forgedsl.lower.job import Job, Wandb
from forgedsl.runs.data import whole
from forgedsl.runtime.events import replace_text
from forgedsl.runtime.readers.prometheus import PrometheusSink
from forgedsl.runtime.readers.rows import Row, Sink

FINISH_SECONDS = 120.0
"""time limit to send remaining data to wandb at the end; `wandb sync RUN/wandb/*` sends the rest"""


class JsonlSink:
    """metrics.jsonl: one JSON object per optimizer step."""

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def resume(self, step: int) -> None:
        keep_rows(self._path, step)
        self._file.close()
        self._file = self._path.open("a", buffering=1, encoding="utf-8")

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")

    def close(self, code: int) -> None:
        self._file.close()


def keep_rows(path: Path, last: int) -> None:
    """Drop the lines of a JSONL file whose `step` is after `last`, and incomplete lines. A run
    killed after its last checkpoint has rows of steps that will be done again."""
    with path.open("rb") as file:
        kept = [line for line in file if (row := whole(line)) is not None and row["step"] <= last]
    replace_text(path, b"".join(kept).decode())


def numbers(row: Row) -> dict[str, float]:
    """Return the numeric fields, as floats."""
    return {k: float(v) for k, v in row.items() if k != "step" and isinstance(v, (int, float))}


def tag(name: str) -> str:
    """Return the chart tag of a field; fields without a section are grouped under `run`."""
    return name if "/" in name else f"run/{name}"


class TensorBoardSink:
    """TensorBoard event files under `tensorboard/`, written without torch or TensorFlow."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def resume(self, step: int) -> None:
        """Do nothing: if steps repeat, TensorBoard shows the later file."""

    def write(self, row: Row) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag(k), simple_value=v) for k, v in numbers(row).items()]
        event = Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values))
        self._writer.add_event(event)

    def close(self, code: int) -> None:
        self._writer.close()


class WandbSink:
    """A run in Weights & Biases."""

    name = "Weights & Biases"

    def __init__(self, run: Any) -> None:
        self._run = run

    def resume(self, step: int) -> None:
        """Do nothing: the service keeps the first value of a repeated step."""

    def write(self, row: Row) -> None:
        self._run.log({tag(k): v for k, v in numbers(row).items()}, step=row["step"])

    def close(self, code: int) -> None:
        import wandb

        try:
            self._run.finish(exit_code=code)
        finally:  # at interpreter exit, its errors would print tracebacks
            wandb.teardown(code)


def open_wandb(settings: Wandb, job: Job, run_dir: Path) -> WandbSink | str:
    """Return the sink, or the reason why there is none."""
    try:
        return _open_wandb(settings, job, run_dir)
    except ImportError:
        return "wandb is not installed, so nothing is sent (pip install wandb)"
    except Exception as error:  # no error of wandb may end a run
        cause = str(error).strip() or type(error).__name__
        return f"wandb cannot be reached, so nothing is sent ({cause})"


def _open_wandb(settings: Wandb, job: Job, run_dir: Path) -> WandbSink | str:
    import wandb

    mode = settings.mode or os.environ.get("WANDB_MODE", "online")
    if mode == "online" and not wandb.login(prompt=False):
        return "no key for wandb, so nothing is sent (wandb login, or WANDB_API_KEY)"
    run = wandb.init(
        project=settings.project,
        entity=settings.entity,
        mode=mode,  # type: ignore[arg-type]
        dir=run_dir,
        name=run_dir.name,
        config={"params": job.params, "seed": job.seed, "hash": job.content_hash},
        settings=wandb.Settings(
            silent=True, init_timeout=30, finish_timeout=FINISH_SECONDS, finish_timeout_raises=True
        ),
    )
    return WandbSink(run)


def open_sinks(job: Job, run_dir: Path) -> tuple[list[Sink], list[str]]:
    """Return the sinks of `job.logging`, and notices about those that are not available."""
    sinks: list[Sink] = []
    notices: list[str] = []
    if job.logging.jsonl:
        sinks.append(JsonlSink(run_dir / "metrics.jsonl"))
    if job.logging.tensorboard:
        sinks.append(TensorBoardSink(run_dir / "tensorboard"))
    if job.logging.prometheus is not None:
        try:
            sinks.append(PrometheusSink(job.logging.prometheus, run_dir.name))
        except OSError as error:
            notices.append(f"no metrics on port {job.logging.prometheus}: {error.strerror}")
    if job.logging.wandb is not None:
        opened = open_wandb(job.logging.wandb, job, run_dir)
        if isinstance(opened, str):
            notices.append(opened)
        else:
            sinks.append(opened)
    return sinks, notices
