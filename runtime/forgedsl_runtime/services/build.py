"""Build the endpoints of a run from its meshes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.types.flow import Role
from forgedsl_runtime.data import DatasetReader, open_dataset
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data.reader import SECONDS, item_maker, load_tokenizer
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.meshes import Fleet
from forgedsl_runtime.modules import load_module
from forgedsl_runtime.services.endpoints import MonarchEndpoints
from forgedsl_runtime.services.environment import EnvironmentClient
from forgedsl_runtime.services.generator import GeneratorClient
from forgedsl_runtime.services.judge import Judge, Scorer
from forgedsl_runtime.services.registry import kind_of
from forgedsl_runtime.services.reward import RewardClient
from forgedsl_runtime.services.trainer import TrainerClient, tenants_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Open datasets of a job, tokenizers, and the module with the job's pure functions."""

    program: ModuleType
    readers: dict[str, DatasetReader]
    judges: dict[str, ChatTokenizer]
    """tokenizers of judge services"""


async def open_data(job: spec.Job, job_dir: Path, run_dir: Path, events: EventLog) -> Data:
    """Open every dataset and check its rows, so that mistakes show before services are up."""
    program = load_module("program", job.program)
    loop = asyncio.get_running_loop()

    def tell(kind: str, **fields: Any) -> None:  # readers of events run on the loop's thread
        loop.call_soon_threadsafe(partial(events.emit, kind, **fields))

    readers = {}
    for name in job.datasets:
        reader = await asyncio.to_thread(
            open_dataset, job, name, program=program, job_dir=job_dir, run_dir=run_dir
        )
        reader.drops.tell = tell
        epochs = job.schedule.epochs
        if epochs is not None and reader.num_rows and name in {n.target for n in job.nodes}:
            reader.end = math.ceil(epochs * reader.num_rows)
        await asyncio.to_thread(reader.check, item_maker(job, name, reader), SECONDS)
        readers[name] = reader
    judges = {}
    for service in {reward.service for reward in job.rewards.values() if reward.kind == "judge"}:
        model = job.services[str(service)].model
        judges[str(service)] = await asyncio.to_thread(load_tokenizer, job, model, job_dir, run_dir)
    return Data(program=program, readers=readers, judges=judges)


async def build_endpoints(
    job: spec.Job, fleet: Fleet, run_dir: Path, data: Data, events: EventLog, record_batches: int
) -> MonarchEndpoints:
    """Connect a client to every mesh."""

    def slow(name: str) -> Callable[[str], object]:
        return lambda text: events.emit("warning", service=name, text=text)

    trainers = {
        name: TrainerClient(mesh, slow(name), replays=job.trainers[name].router_replay)
        for name, mesh in fleet.trainers.items()
    } | tenants_of(job, fleet.trainers)
    endpoints = MonarchEndpoints(
        job, run_dir, datasets=data.readers, samplers={}, trainers=trainers,
        rewards=RewardClient(job, fleet.rewards, data.program, events), program=data.program,
        record_batches=record_batches,
    )  # fmt: skip
    for name, meshes in fleet.samplers.items():
        service = job.samplers[name]
        client = GeneratorClient(
            service, meshes, endpoints.report_failure, slow(name), aborts=kind_of(service).aborts
        )
        await client.start()
        endpoints.samplers[name] = client
    for name, service in job.samplers.items():
        if service.served_by is not None:
            endpoints.samplers[name] = GeneratorClient(
                service, [], endpoints.report_failure, tenant=name,
                engine=endpoints.samplers[service.served_by],
            )  # fmt: skip
    for name, reward in job.rewards.items():
        if reward.service is not None and reward.kind == "scorer":
            endpoints.rewards.judge(name, Scorer(name, job, trainers[reward.service]))
        elif reward.service is not None:
            client = endpoints.samplers[reward.service]
            endpoints.rewards.judge(name, Judge(name, job, client, data.judges[reward.service]))
    await _environments(job, fleet, data, events, endpoints)
    return endpoints


async def _environments(
    job: spec.Job, fleet: Fleet, data: Data, events: EventLog, endpoints: MonarchEndpoints
) -> None:
    """Connect a client to every environment, and a driver for each generator that plays in it."""
    for name, environment in job.environments.items():
        mesh = fleet.environments[name]
        endpoints.environments[name] = EnvironmentClient(name, environment, mesh, events)
    roots = {node.name: node.target for node in job.nodes if Role.PROMPTS in node.roles}
    plays = [(n.env, n.target, roots[n.inputs[0].edge]) for n in job.nodes if n.env is not None]
    plays += [(e.env, e.service, e.dataset) for e in job.evals.values() if e.env is not None]
    told: set[tuple[str, str]] = set()
    for env, service, dataset in plays:
        reader = data.readers[dataset]
        if (env, service) not in endpoints.drivers:
            client = endpoints.environments[env]
            model = job.services[service].model
            endpoints.drivers[env, service] = await client.driver(reader.tokenizer, model)
        if reader.is_chat or job.environments[env].agent:
            found = endpoints.drivers[env, service].template_warning()
            if found and (env, service) not in told:
                told.add((env, service))
                endpoints.environments[env].tell(found)
