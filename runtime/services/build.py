"""Meshes of a run -> its endpoints, with a watch on every mesh."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forgedsl.lower import job as spec
from forgedsl.runtime.data import open_dataset
from forgedsl.runtime.endpoints import ServiceError
from forgedsl.runtime.meshes import Fleet
from forgedsl.runtime.modules import load_module
from forgedsl.runtime.services.endpoints import MonarchEndpoints
from forgedsl.runtime.services.generator import GeneratorClient
from forgedsl.runtime.services.reward import RewardClient
from forgedsl.runtime.services.titan import TitanClient
from forgedsl.runtime.upstream.monarch import Mesh


async def build_endpoints(
    job: spec.Job, fleet: Fleet, run_dir: Path, job_dir: Path, record_batches: int
) -> MonarchEndpoints:
    """Open the datasets and connect a client to every mesh."""
    program = load_module("program", job.program)
    readers = {
        name: await asyncio.to_thread(
            open_dataset, job, name, program=program, job_dir=job_dir, run_dir=run_dir
        )
        for name in job.datasets
    }
    endpoints = MonarchEndpoints(
        job,
        run_dir,
        datasets=readers,
        generators={},
        titans={name: TitanClient(mesh) for name, mesh in fleet.titans.items()},
        rewards=RewardClient(job, fleet.rewards, program),
        program=program,
        record_batches=record_batches,
    )
    for name, meshes in fleet.generators.items():
        service = job.services[name]
        assert isinstance(service, spec.VllmService)
        client = GeneratorClient(service, meshes, endpoints.report_failure)
        await client.start()
        endpoints.generators[name] = client
    return endpoints


def watch(fleet: Fleet, endpoints: MonarchEndpoints) -> list[asyncio.Task[None]]:
    """One task per mesh that reports the death of any of its processes."""
    return [asyncio.create_task(_watch(mesh, endpoints)) for mesh in fleet.all()]


async def _watch(mesh: Mesh, endpoints: MonarchEndpoints) -> None:
    try:
        await mesh.call("watch")
    except ServiceError as error:
        endpoints.failures.put_nowait(error.failure)
