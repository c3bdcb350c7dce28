"""Recorded steps for `forgec replay`: a batch and the result of its step."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from forgedsl.runtime.data_types import Batch, StepResult

FOLDER = "batches"


def record(run_dir: Path, service: str, loss: str, batch: Batch, result: StepResult) -> None:
    """Write a batch and the result of its step; the file is named by the new policy version."""
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    content = {"service": service, "loss": loss, "batch": asdict(batch), "result": asdict(result)}
    (folder / f"step-{result.version}.json").write_text(json.dumps(content))
