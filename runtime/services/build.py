"""Meshes of a run -> its endpoints."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from forgedsl.lower import job as spec
from forgedsl.runtime.data import DatasetReader, open_dataset
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.meshes import Fleet
from forgedsl.runtime.modules import load_module
from forgedsl.runtime.services.endpoints import MonarchEndpoints
from forgedsl.runtime.services.generator import GeneratorClient
from forgedsl.runtime.services.reward import RewardClient
from forgedsl.runtime.services.titan import TitanClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The open datasets of a job and the module with its pure functions."""

    program: ModuleType
    readers: dict[str, DatasetReader]


async def open_data(job: spec.Job, job_dir: Path, run_dir: Path) -> Data:
    """Open every dataset and read its first row, so that a mistake shows before services are up."""
    program = load_module("program", job.program)
    readers = {
        name: await asyncio.to_thread(_open, job, name, program, job_dir, run_dir)
        for name in job.datasets
    }
    return Data(program=program, readers=readers)


def _open(
    job: spec.Job, name: str, program: ModuleType, job_dir: Path, run_dir: Path
) -> DatasetReader:
    reader = open_dataset(job, name, program=program, job_dir=job_dir, run_dir=run_dir)
    dataset = job.datasets[name]
    if dataset.prompt is not None:
        reader.next_prompt()
        reader.seek(0)
    return reader


async def build_endpoints(
    job: spec.Job,
    fleet: Fleet,
    run_dir: Path,
    data: Data,
    events: EventLog,
    record_batches: int,
) -> MonarchEndpoints:
    """Connect a client to every mesh."""
    endpoints = MonarchEndpoints(
        job,
        run_dir,
        datasets=data.readers,
        generators={},
        titans={name: TitanClient(mesh) for name, mesh in fleet.titans.items()},
        rewards=RewardClient(job, fleet.rewards, data.program, events),
        program=data.program,
        record_batches=record_batches,
    )
    for name, meshes in fleet.generators.items():
        service = job.services[name]
        assert isinstance(service, spec.VllmService)
        client = GeneratorClient(service, meshes, endpoints.report_failure)
        await client.start()
        endpoints.generators[name] = client
    return endpoints
