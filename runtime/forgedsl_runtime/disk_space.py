"""Check before a run starts that the disk has room for all that it will write.

Job, config.json of trained models --> bytes of checkpoints, export and models with merged adapters
                                   --> text, or LaunchError
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from forgedsl import surface
from forgedsl.errors import LaunchError
from forgedsl.families import registry
from forgedsl.families.base import Unsupported
from forgedsl.lower import job as spec
from forgedsl.runs.checkpoints import checkpoint_steps
from forgedsl.sizes.optimizers import checkpoint_bytes
from forgedsl.sizes.params import ITEMSIZE, adapter_params, num_params
from forgedsl.types.flow import Role
from forgedsl_runtime.models import resolve_model

GIB = 2**30


def check_room(job: spec.Job, job_dir: Path, temp: Path, run_dir: Path) -> str:
    """Return text with the free space at `run_dir` and the most that the run will still write
    there. Checkpoints that are already there are not counted again. Folders of random models are
    made in `temp`.

    Raises:
        LaunchError: it does not fit.
    """
    size, export = _sizes(job, job_dir, temp)
    merged = _merged(job, job_dir, run_dir)
    count = max(0, _kept(job) - len(checkpoint_steps(run_dir)))
    need = count * size + export + merged
    there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    parts = [f"{count} checkpoint{'s' * (count > 1)} of {_text(size)}"] if count else []
    parts += [f"an export of {_text(export)}"] if export else []
    parts += [f"merged models of {_text(merged)}"] if merged else []
    if need > free:
        fewer = "a smaller `checkpoint.keep`, " if job.checkpoint.keep > 1 else ""
        raise LaunchError(
            f"not enough disk space for {' and '.join(parts)} in {run_dir}: {_text(free)} are "
            f"free; free some space, or choose {fewer}another disk with "
            f"{surface.option('--run-dir', 'DIR')}"
        )
    return f"{_text(free)} free" + (f", {' and '.join(parts)}" if parts else "")


def _sizes(job: spec.Job, job_dir: Path, temp: Path) -> tuple[int, int]:
    """Return bytes of one checkpoint and bytes of the export (0 if the job asks for none)."""
    size = export = 0
    trained = {node.target for node in job.nodes if Role.UPDATES in node.roles}
    for name in sorted(trained):
        service = job.trainers[name]
        model = job.models[service.model]
        folder = resolve_model(job, service.model, job_dir, temp)
        try:
            _, dims = registry.by_config(json.loads((folder / "config.json").read_text("utf-8")))
        except Unsupported:  # the error is reported when the trainer is built
            continue
        params = num_params(dims)
        if service.optimizer is not None:
            opt, adapted = service.optimizer, service.lora
            adapters = 0 if adapted is None else adapter_params(dims, adapted.rank)
            size += checkpoint_bytes(
                dims, opt.kind, opt.precision, momentum=opt.momentum, adapters=adapters
            )
        export += ITEMSIZE[model.dtype] * params if job.checkpoint.export else 0
    return size, export


def _merged(job: spec.Job, job_dir: Path, run_dir: Path) -> int:
    """Return bytes of the models with merged adapters that the run still has to write."""
    return sum(
        file.stat().st_size
        for name in {service.model for service in job.with_processes.values()}
        if job.models[name].adapter is not None and not (run_dir / "models" / name).is_dir()
        for file in resolve_model(job, name, job_dir, run_dir).glob("*.safetensors")
    )


def _kept(job: spec.Job) -> int:
    """Return the largest number of checkpoints on disk at a time. That is `keep` + 1, since the
    oldest is removed only after the newest is complete. With `every_s` there is at most one
    checkpoint per step."""
    steps, every = job.schedule.steps, job.checkpoint.every
    most = job.checkpoint.keep + 1
    if steps is None:
        return most
    by_time = job.checkpoint.every_s is not None
    return min(most, -(-steps // every) if every else steps if by_time else 1)


def _text(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:,.1f} MiB"
