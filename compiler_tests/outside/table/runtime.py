"""How `table` runs: one process, whose weights are a JSON file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from monarch.actor import concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.data_types import Batch, Sample, StepResult
from forgedsl_runtime.services.base import Kind
from forgedsl_runtime.transports.base import Manifest


class Table(ForgeActor):
    def __init__(self, job: spec.Job, name: str, folder: str, **options: Any) -> None:
        super().__init__()
        self.lr = job.trainers[name].learning_rate
        self.version, self.counts = 0, Counter[int]()

    @concurrent_endpoint
    async def setup(self, run_dir: str, run_key: str, resume: int | None) -> dict[str, Any]:
        self.folder = Path(run_dir)
        if resume:
            found = json.loads(self._path(resume).read_text())
            self.version = found["version"]
            self.counts = Counter({int(token): n for token, n in found["counts"].items()})
        return {}

    @concurrent_endpoint
    async def logprobs(self, samples: list[Sample]) -> list[list[float]]:
        return [[-1.0] * len(sample.mask) for sample in samples]

    @concurrent_endpoint
    async def step(self, batch: Batch, loss: str) -> StepResult:
        for sample in batch.samples:
            self.counts.update(sample.token_ids)
        self.version += 1
        return StepResult(
            version=self.version, loss=-float(len(self.counts)), grad_norm=0.0, lr=self.lr,
            tokens=sum(len(sample.token_ids) for sample in batch.samples), metrics={},
            kernel="none (table)",
        )  # fmt: skip

    @concurrent_endpoint
    async def gauge(self) -> float:
        return 0.0

    @concurrent_endpoint
    async def publish(self) -> Manifest:
        return Manifest(version=self.version, transport="none", parts=())

    @concurrent_endpoint
    async def save(self, step: int) -> None:
        path = self._path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": self.version, "counts": self.counts}))

    @concurrent_endpoint
    async def saved(self) -> None:
        pass

    @concurrent_endpoint
    async def close(self) -> None:
        pass

    def _path(self, step: int) -> Path:
        return self.folder / f"checkpoints/step-{step}/table.json"


KINDS = (Kind(name="table", actor=lambda service: Table),)
