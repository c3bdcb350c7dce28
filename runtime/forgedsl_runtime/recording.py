"""Recorded steps for `forgec replay`: a batch and the result of its step."""

from __future__ import annotations

import base64
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forgedsl_runtime.data_types import Batch, Sample, StepResult
from forgedsl_runtime.routes import Routes

FOLDER = "batches"


def record(run_dir: Path, service: str, loss: str, batch: Batch, result: StepResult) -> None:
    """Write a batch and the result of its step; the file is named by the new policy version."""
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    content = {"service": service, "loss": loss, "batch": batch, "result": result}
    (folder / f"step-{result.version}.json").write_text(json.dumps(content, default=_written))


def _written(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, which may hold further ones; of routes their dtype, shape
    and bytes as text."""
    if is_dataclass(value):  # `asdict` would copy every number of its lists
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return _routes(value)


def _routes(routes: Routes) -> dict[str, Any]:
    content = base64.b64encode(np.ascontiguousarray(routes).tobytes()).decode("ascii")
    return {"dtype": routes.dtype.name, "shape": routes.shape, "base64": content}


def recorded_sample(written: dict[str, Any]) -> Sample:
    """Return a sample of a recorded batch."""
    given = written.get("routes")
    if given is None:
        return Sample(**written)
    content = np.frombuffer(base64.b64decode(given["base64"]), given["dtype"])
    return Sample(**written | {"routes": content.reshape(given["shape"])})
