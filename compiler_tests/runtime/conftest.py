"""Pieces of jobs for the runtime tests: the shipped model on CPU meshes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgedsl.lower import job as spec


def titan(
    *, procs: int = 1, trained: bool = True, lr: float = 2e-4, eps: float = 1e-8
) -> spec.TitanService:
    """A titan service over the model "policy" on CPU."""
    return spec.TitanService(
        model="policy",
        mesh=spec.Mesh(name="trainer" if trained else "reference", procs=procs, device="cpu"),
        dtype="f32",
        parallel=spec.TitanParallel(dp_shard=procs),
        optimizer=spec.Optimizer(lr=lr, eps=eps) if trained else None,
        batch=spec.BatchShape(seq_len=64, rows=8),
    )


def job_of(**parts: Any) -> spec.Job:
    """A job with the shipped model; everything that is not given is empty."""
    model = spec.Model(
        source=spec.LocalModel(path="forgedsl:models/tiny_math", sha256=""),
        dtype="f32",
        context=256,
    )
    empty: dict[str, Any] = {
        "compiler": "test",
        "name": "test",
        "seed": 17,
        "profile": None,
        "summary": (),
        "params": {},
        "models": {"policy": model},
        "datasets": {},
        "services": {},
        "rewards": {},
        "rubrics": {},
        "losses": {},
        "program": "",
        "nodes": (),
        "schedule": spec.Schedule(mode="sync", steps=4, prompts=1, credits=1, age_bound=0),
        "evals": {},
        "checkpoint": spec.Checkpoint(),
        "logging": spec.Logging(),
        "launcher": spec.Launcher(),
        "origins": {},
        "topology": "",
    }
    return spec.Job(**(empty | parts))


@pytest.fixture
def make_job() -> Any:
    return job_of


@pytest.fixture
def make_titan() -> Any:
    return titan


@pytest.fixture
def interpreted() -> Callable[[str], None]:
    """Runs a program whose Triton kernels are interpreted, in a process of its own: Triton decides
    at its import."""

    def run(program: str) -> None:
        here = str(Path(__file__).parents[1] / "numerics")  # `tolerance`
        env = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": here,
        }
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return run
