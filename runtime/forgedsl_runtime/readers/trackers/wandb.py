"""Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path

from forgedsl.lower.job import Job, Logging, Wandb
from forgedsl_runtime.readers.rows import Sink
from forgedsl_runtime.readers.trackers.base import RunSink, config_of

FINISH_SECONDS = 120.0
"""time limit to send remaining data to wandb at the end; `wandb sync RUN/wandb/*` sends the rest"""


class WandbTracker:
    name = package = "wandb"

    def settings(self, logging: Logging) -> Wandb | None:
        return logging.wandb

    def open(self, settings: Wandb, job: Job, run_dir: Path) -> Sink | str:
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
            config=config_of(job),
            settings=wandb.Settings(
                silent=True, init_timeout=30, finish_timeout=FINISH_SECONDS,
                finish_timeout_raises=True,
            ),
        )  # fmt: skip
        return WandbSink(run)


class WandbSink(RunSink):
    """A run in Weights & Biases, which keeps the first value of a repeated step."""

    name = "Weights & Biases"

    def close(self, code: int) -> None:
        import wandb

        try:
            self._run.finish(exit_code=code)
        finally:  # at interpreter exit, its errors would print tracebacks
            wandb.teardown(code)
