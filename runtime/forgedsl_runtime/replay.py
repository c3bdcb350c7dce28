"""Repeat one recorded optimizer step: on other ranks, after an edit, or under a debugger.

    RUN/batches/step-K.json + RUN/job.json --trainer mesh only--> the step's result and weights

The step starts where it started in the run: from the model's source for step 1, else from the
checkpoint of the step before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import reduce
from math import prod
from operator import getitem
from pathlib import Path
from typing import Any, Literal

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.runs.data import jsonl
from forgedsl.types.flow import Role
from forgedsl_runtime import meshes
from forgedsl_runtime.data_types import Batch, StepResult
from forgedsl_runtime.recording import FOLDER, recorded_sample
from forgedsl_runtime.services.trainer import TrainerClient
from forgedsl_runtime.temporary_files import Scratch

Device = Literal["cpu", "gpu"]


def replay(
    run_dir: Path, step: int, *, procs: int | None, out: Path, device: Device | None = None
) -> dict[str, Any]:
    """Repeat recorded step `step` on `procs` ranks of a device (None: as in the run). Weights are
    written to `out`. Returns the recorded and the repeated result, and the settings that were
    changed after the step.

    Raises:
        LaunchError: the batch, or the checkpoint that it starts from, is missing.
    """
    file = run_dir / FOLDER / f"step-{step}.json"
    if not file.is_file():
        there = ", ".join(sorted(p.stem for p in (run_dir / FOLDER).glob("step-*.json"))) or "none"
        raise LaunchError(
            f"{file} does not exist (recorded: {there}); record more with --record-batches N"
        )
    content = json.loads(file.read_text())
    changes = changed_since(run_dir, step)
    job = job_at_step(spec.read_job(run_dir), changes)
    written = content["batch"]
    beside = [
        (loss, [recorded_sample(s) for s in part]) for loss, part in written.get("beside", ())
    ]
    samples = [recorded_sample(s) for s in written["samples"]]
    batch = Batch(**written | {"samples": samples, "beside": beside})
    run_dir, out = run_dir.resolve(), out.resolve()
    alone = trainer_only(job, content["service"], procs, device)
    result = asyncio.run(_replay(alone, run_dir, step, batch, content["loss"], out))
    found = {"recorded": content["result"], "replayed": asdict(result)}
    return found | ({"changed_since": changes} if changes else {})


def changed_since(run_dir: Path, step: int) -> list[dict[str, Any]]:
    """Return settings that `--resume --allow` changed after a step, with their earlier values."""
    file = run_dir / "changes.jsonl"
    entries = [entry for entry in jsonl(file, []) if entry["after_step"] >= step]
    return [_change(each) for entry in entries for each in entry["changes"]]


def _change(entry: dict[str, Any] | str) -> dict[str, Any]:
    """Parse a change. Early versions wrote changes as text: `setting: 0.0002 -> 0.0001`."""
    if isinstance(entry, dict):
        return entry
    setting, _, values = entry.partition(": ")
    before, _, after = values.partition(" -> ")
    # the value was written shortened (such as a hash of data); a replay does not need it
    cut = before.endswith("...")
    return {"setting": setting, "before": before if cut else json.loads(before), "after": after}


def job_at_step(job: spec.Job, changes: list[dict[str, Any]]) -> spec.Job:
    """Return the job with the earlier settings of its services; the last change is undone first.
    Mesh and parallel settings stay: a replay runs on any ranks."""
    values = job.model_dump(mode="json")
    for change in reversed(changes):
        *path, last = change["setting"].split(".")
        if path[:1] == ["services"] and path[2:3] not in (["mesh"], ["parallel"]):
            reduce(getitem, path, values)[last] = change["before"]
    return spec.Job.model_validate(values)


def trainer_only(
    job: spec.Job, name: str, procs: int | None, device: Device | None = None
) -> spec.Job:
    """Return the job with only its trainer, on `procs` ranks of this host and on `device`."""
    service = job.services[name]
    assert isinstance(service, spec.TitanService)  # only its class has the settings changed below
    mesh, parallel = service.mesh, service.parallel
    ranks = procs or mesh.hosts * mesh.procs
    if procs is not None:
        parallel = fit_degrees(parallel, procs)
    if (ranks, device or mesh.device) != (mesh.hosts * mesh.procs, mesh.device) or mesh.hosts > 1:
        gpus = 0 if (device or mesh.device) == "cpu" else max(1, mesh.gpus)
        place = spec.Place(replica=0, host=0, gpus=tuple(range(ranks * gpus)))
        mesh = mesh.model_copy(
            update={"hosts": 1, "procs": ranks, "gpus": gpus, "device": device or mesh.device,
                    "places": (place,) if gpus else ()}
        )  # fmt: skip
    on_gpu = mesh.device == "gpu"
    service = service.model_copy(
        update={"mesh": mesh, "parallel": parallel, "offload": service.offload and on_gpu,
                "compile": on_gpu and (service.compile or device is not None)}
    )  # fmt: skip
    steps = tuple(node for node in job.nodes if Role.UPDATES in node.roles and node.target == name)
    return job.model_copy(
        update={"services": {name: service}, "rewards": {}, "rubrics": {}, "nodes": steps}
    )


def fit_degrees(parallel: spec.TitanParallel, procs: int) -> spec.TitanParallel:
    """Return degrees for `procs` ranks. `dp_shard` is `procs` divided by the product of the other
    degrees. If that does not divide evenly, `dp_shard` is `procs` and all others are 1."""
    single = parallel.model_copy(update={"dp_shard": 1})
    share, rest = divmod(procs, prod(single.model_dump().values()))
    return (
        single.model_copy(update={"dp_shard": share})
        if not rest
        else spec.TitanParallel(dp_shard=procs)
    )


async def _replay(
    job: spec.Job, run_dir: Path, step: int, batch: Batch, loss: str, out: Path
) -> StepResult:
    if step > 1 and not starts(run_dir, step):
        raise LaunchError(
            f"step {step} starts from checkpoints/step-{step - 1}, which does not exist; "
            "`checkpoint.every` and `checkpoint.keep` decide which checkpoints are kept"
        )
    async with trainer_before(step, job, run_dir, out) as client:
        result = await client.step(batch, loss)
        (service,) = job.services.values()
        await client.export(str(out / "weights"), job.models[service.model].dtype)
        return result


def starts(run_dir: Path, step: int) -> bool:
    """True if a trainer can be restored to the state before a step of the run: it is the first
    step, or there is a checkpoint of the step before."""
    return step == 1 or (run_dir / f"checkpoints/step-{step - 1}/controller.json").is_file()


@asynccontextmanager
async def trainer_before(
    step: int, job: spec.Job, run_dir: Path, out: Path
) -> AsyncIterator[TrainerClient]:
    """Start the only service of a job, a trainer, in the state that it had before `step` of the
    run. Its logs go to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    resume = step - 1 or None
    scratch = Scratch()
    fleet = meshes.spawn(job, out, run_dir, scratch.environment())
    (mesh,) = fleet.trainers.values()
    client = TrainerClient(mesh)
    try:
        home = run_dir if resume else out
        await meshes.setup(fleet, home, scratch.key, resume, lambda *_: None)
        yield client
        await client.close()
    finally:
        await mesh.stop()
        scratch.close()
