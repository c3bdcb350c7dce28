"""Models that warm up on a CPU too, where a run does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from monarch.actor import concurrent_endpoint

from forgedsl_runtime.services.titan import warm_up
from forgedsl_runtime.services.titan.actor import TitanTrainer
from forgedsl_runtime.services.titan.frozen import ReferenceModel


class WarmedTrainer(TitanTrainer):
    def _setup(self, run_dir: Path, run_key: str, resume_step: int | None) -> dict[str, Any]:
        with patch.object(warm_up, "engines_start", lambda job, name: True):
            return super()._setup(run_dir, run_key, resume_step)


class ModelWarmedTrainer(WarmedTrainer):
    """Warms up as if its loss were in Python."""

    def _setup(self, run_dir: Path, run_key: str, resume_step: int | None) -> dict[str, Any]:
        with patch.object(warm_up, "losses_of", lambda job, name: []):
            return super()._setup(run_dir, run_key, resume_step)


class FrozenModel(ReferenceModel):
    """A frozen model that a test can close as it closes trainers."""

    @concurrent_endpoint
    async def close(self) -> None:
        pass


class WarmedFrozenModel(FrozenModel):
    def _setup(self, run_dir: Path, run_key: str, resume_step: int | None) -> dict[str, Any]:
        with patch.object(warm_up, "engines_start", lambda job, name: True):
            return super()._setup(run_dir, run_key, resume_step)
