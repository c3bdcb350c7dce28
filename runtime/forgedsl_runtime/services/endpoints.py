"""The real `Endpoints` (forgedsl_runtime.endpoints): every call of the controller over the clients.

Data and pure functions of the program run here, in the controller's process; models, engines and
rewards run in their meshes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from forgedsl.lower import job as spec
from forgedsl.lower.dataset_columns import read_by
from forgedsl.runs.checkpoints import REPLAY, WHOLE, keep_newest, last_step
from forgedsl_runtime.data import DatasetReader
from forgedsl_runtime.data_types import Batch, Completion, Prompt, Rollout, Sample, StepResult
from forgedsl_runtime.endpoints import (
    CheckpointError,
    HeldOutLoss,
    Score,
    ServiceError,
    ServiceFailure,
    SyncResult,
)
from forgedsl_runtime.environments.driver import AnyDriver, Limits
from forgedsl_runtime.recording import record
from forgedsl_runtime.routes import join_routes
from forgedsl_runtime.services.environment import EnvironmentClient
from forgedsl_runtime.services.generator import GeneratorClient, ReplicaAffinity
from forgedsl_runtime.services.reward import RewardClient
from forgedsl_runtime.services.trainer import TrainerClient
from forgedsl_runtime.tensor_calls import call_on_tensors
from forgedsl_runtime.upstream.monarch import Mesh


class Pool(Protocol):
    """Processes of rewards or of an environment; they are started again when they die."""

    def lost(self) -> int: ...

    def restore(self, mesh: Mesh) -> None: ...


class MonarchEndpoints:
    """Services of a running job. `datasets` holds an open reader per dataset. The batches of the
    first `record_batches` steps are kept for `forgec replay`."""

    def __init__(
        self,
        job: spec.Job,
        run_dir: Path,
        *,
        datasets: Mapping[str, DatasetReader],
        samplers: dict[str, GeneratorClient],
        trainers: Mapping[str, TrainerClient],
        rewards: RewardClient,
        program: ModuleType,
        record_batches: int,
    ) -> None:
        self.job = job
        self.run_dir = run_dir
        self.failures: asyncio.Queue[ServiceFailure] = asyncio.Queue()
        self.datasets = datasets
        self.samplers = samplers
        self.trainers = trainers
        self.rewards = rewards
        self.environments: dict[str, EnvironmentClient] = {}
        self.drivers: dict[tuple[str, str], AnyDriver[Any]] = {}
        """by environment and generator"""
        self.program = program
        self._to_record = record_batches
        self._held_out: dict[str, list[Any]] = {}

    # ---- data

    async def draw(self, node: spec.Node) -> Prompt | None:
        return self.datasets[node.target].next_prompt()

    async def batches(self, node: spec.Node) -> Batch | None:
        reader = self.datasets[node.target]
        if reader.ended:
            return None
        shape, rows = step_shape(self.job)
        samples = await asyncio.to_thread(reader.next_batch, rows, shape.seq_len, pack=shape.pack)
        return Batch(samples=samples, cursor=reader.cursor)

    async def pairs(self, node: spec.Node) -> list[Rollout] | None:
        shape, _ = step_shape(self.job)
        pair = self.datasets[node.target].next_pair(shape.seq_len, shape.rows)
        return None if pair is None else list(pair)

    async def seek(self, node: spec.Node, cursor: int) -> None:
        self.datasets[node.target].seek(cursor)

    # ---- models

    async def sample(self, node: spec.Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        client = self.samplers[node.target]
        if node.env is None:
            return await self.complete(client, client.service.sampling, prompt, sibling, seed)
        shape, _ = step_shape(self.job)
        limits = _limits(client.service.sampling, node, shape.seq_len)
        return await self._play(node.env, node.target, prompt, sibling, seed, limits)

    async def logprobs(
        self, node: spec.Node, rollouts: Sequence[Rollout | Sample]
    ) -> list[list[float]]:
        client = self.trainers[node.target]
        return await (client.values if node.values else client.logprobs)(rollouts)

    async def step(self, node: spec.Node, batch: Batch) -> StepResult:
        assert node.loss is not None
        result = await self.trainers[node.target].step(batch, node.loss)
        if self._to_record > 0 and not (result.skipped or result.left):
            self._to_record -= 1
            record(self.run_dir, node.target, node.loss, batch, result)
        return result

    async def abandon_step(self, node: spec.Node) -> bool:
        return await self.trainers[node.target].abandon_step()

    async def sync(self, node: spec.Node, version: int) -> SyncResult:
        assert node.to is not None
        start = time.monotonic()
        trainer = self.trainers[node.target]
        manifest, keep = await trainer.publish(), node.on_swap == "keep"
        published = time.monotonic() - start
        host = trainer.mesh.on.start
        found = await self.samplers[node.to].load(manifest, keep=keep, host=host)
        return SyncResult(
            bytes=manifest.num_bytes, transport=manifest.transport,
            seconds=time.monotonic() - start, publish_seconds=published, proved=found.proved,
            changed=manifest.changed,
            unproved=found.placeless, was_random=found.was_random, base=found.base,
            digests={name: each.value for name, each in (manifest.digests or {}).items()} or None,
        )  # fmt: skip

    # ---- rewards and functions

    async def score(self, node: spec.Node, rollout: Any, target: Any) -> Score:
        return await self.rewards.score(node.target, rollout, target)

    async def call(self, node: spec.Node, args: dict[str, Any]) -> Any:
        return call_on_tensors(getattr(self.program, node.target), args)

    async def weight(self, node: spec.Node, results: dict[str, float]) -> float:
        assert node.weight is not None
        function = getattr(self.program, node.weight)
        takes = inspect.signature(function).parameters
        return float(function(**{name: results[name] for name in results if name in takes}))

    # ---- evaluation

    async def eval_prompts(self, name: str) -> list[Prompt]:
        spec_ = self.job.evals[name]
        return self.datasets[spec_.dataset].prompts(spec_.limit)

    async def evaluate_loss(self, name: str) -> HeldOutLoss:
        spec_ = self.job.evals[name]
        assert spec_.loss is not None
        if name not in self._held_out:
            _, seq_len, rows = read_by(self.job, spec_.dataset)
            reader, paired = self.datasets[spec_.dataset], self.job.losses[spec_.loss].paired
            self._held_out[name] = await asyncio.to_thread(
                partial(reader.held_out, spec_.limit, seq_len, rows, paired=paired)
            )
        items = self._held_out[name]
        found = await self.trainers[spec_.service].evaluate(items, spec_.loss) if items else {}
        return HeldOutLoss(value=found.pop("loss", None), reports=found, samples=len(items))

    async def evaluate_sample(self, name: str, prompt: Prompt, sibling: int, seed: int) -> Rollout:
        spec_ = self.job.evals[name]
        assert spec_.sampling is not None
        if spec_.env is None:
            client = self.samplers[spec_.service]
            return await self.complete(client, spec_.sampling, prompt, sibling, seed)
        limits = _limits(spec_.sampling, spec_)
        return await self._play(spec_.env, spec_.service, prompt, sibling, seed, limits)

    async def evaluate_score(self, name: str, rollout: Rollout) -> Score:
        score = self.job.evals[name].score
        assert score is not None
        return await self.rewards.score(score, rollout, rollout.prompt.target, monitored=False)

    # ---- the run

    async def save(
        self,
        step: int,
        controller_state: dict[str, Any],
        taken: asyncio.Event,
        replay: bytes | None = None,
    ) -> str:
        trained = [c for n, c in self.trainers.items() if self.job.services[n].trained]
        path = f"checkpoints/step-{step}"
        if not self.run_dir.is_dir():  # a new folder would hold only half of the run
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written: {self.run_dir} has been moved "
                "or removed",
                remedy="do not move a run folder before its run has ended; `forgec run --resume` "
                "with its new place continues from its last checkpoint",
            )
        try:
            await _all(c.save(step) for c in trained)
            taken.set()
            await _all(c.saved() for c in trained)
            if replay is not None:
                await asyncio.to_thread(_write, self.run_dir / path / REPLAY, replay)
            await self.amend(step, controller_state)
        except (OSError, ServiceError) as error:
            if isinstance(error, ServiceError) and error.died:
                raise
            raise self._unsaved(step, self.run_dir / path, error) from error
        keep_newest(self.run_dir, self.job.checkpoint.keep)
        return path

    async def amend(self, step: int, controller_state: dict[str, Any]) -> None:
        # Write this file last and atomically: its presence marks the checkpoint as complete.
        text = json.dumps(controller_state)
        _write(self.run_dir / f"checkpoints/step-{step}" / WHOLE, text.encode())

    def _unsaved(self, step: int, folder: Path, error: OSError | ServiceError) -> CheckpointError:
        """Remove a partly written checkpoint; return the error, which names the last complete
        one."""
        free = shutil.disk_usage(self.run_dir).free / 2**20
        shutil.rmtree(folder, ignore_errors=True)
        cause = error.failure.message if isinstance(error, ServiceError) else str(error)
        last = last_step(self.run_dir)
        return CheckpointError(
            f"the checkpoint of step {step} cannot be written to {folder}, where "
            f"{free:,.0f} MiB were free: {cause}",
            remedy="free some space there; "
            + (
                f"the checkpoint of step {last} is safe"
                if last
                else ("there is no earlier checkpoint")
            ),
        )

    async def health(self) -> dict[str, str]:
        samplers = {
            name: f"{client.num_open} completions in flight"
            for name, client in self.samplers.items()
        }
        return {**samplers, **dict.fromkeys(self.trainers, "up")}

    async def export(self, target: str) -> str:
        """Export the trained model in Hugging Face format; return the path."""
        name = self.job.trained_service
        model = self.job.models[self.job.services[name].model]
        return await self.trainers[name].export(target, model.dtype)

    async def close(self) -> None:
        """Stop listening, and release resources that services hold outside their processes."""
        for client in self.samplers.values():
            client.close()
        trained = [c for n, c in self.trainers.items() if self.job.services[n].trained]
        results = await asyncio.gather(*(c.close() for c in trained), return_exceptions=True)
        del results  # ignore errors of services that are gone

    def pool(self, mesh: Mesh) -> Pool | None:
        """Return the client of the reward or environment pool on this mesh, or None."""
        played = (c for c in self.environments.values() if c.mesh is mesh)
        return self.rewards.pool(mesh) or next(played, None)

    def report_failure(self, mesh: Mesh, message: str) -> None:
        """Report a dead service to the controller."""
        self.failures.put_nowait(
            ServiceFailure(service=mesh.service, origin=mesh.origin, message=message)
        )

    async def complete(
        self,
        client: GeneratorClient,
        sampling: spec.Sampling,
        prompt: Prompt | Rollout,
        sibling: int,
        seed: int,
    ) -> Rollout:
        asked = as_prompt(prompt)
        done = await client.sample(asked.token_ids, sampling, seed)
        return _rollout(done, asked, sibling)

    async def _play(
        self, env: str, service: str, prompt: Any, sibling: int, seed: int, limits: Limits
    ) -> Rollout:
        """Play a trajectory; each of its turns is a completion of its own."""
        client = self.samplers[service]
        driver, asked = self.drivers[env, service], as_prompt(prompt)
        engine = partial(client.sample, home=ReplicaAffinity(asked.token_ids))
        return await driver.play(engine, asked, sibling, seed, limits)


def _limits(
    sampling: spec.Sampling, of: spec.Node | spec.Eval, max_total_tokens: int = sys.maxsize
) -> Limits:
    assert of.longest is not None
    return Limits(
        sampling=sampling,
        turns=of.max_turns,
        max_row_tokens=of.longest,
        max_total_tokens=max_total_tokens,
    )


def step_shape(job: spec.Job) -> tuple[spec.BatchShape, int]:
    """Return the microbatch shape of the trained service, and the rows of a whole optimizer
    step."""
    trainer = job.trainers[job.trained_service]
    return trainer.batch, trainer.step_rows


def as_prompt(item: Prompt | Rollout) -> Prompt:
    """Return the prompt to sample from. A Prompt is returned unchanged. If it is a Rollout (a judge
    reads one), return a prompt that consists of its prompt and completion. If it has several
    training rows, only the last row is used."""
    if isinstance(item, Prompt):
        return item
    whole = [*item.prompt.token_ids, *item.token_ids]
    return Prompt(
        group=item.group,
        row=item.prompt.row,
        text=item.prompt.text + item.text,
        token_ids=item.token_ids[item.row_starts[-1] :] if item.row_starts else whole,
        target=item.prompt.target,
        cursor=item.prompt.cursor,
    )


def _rollout(done: Completion, prompt: Prompt, sibling: int) -> Rollout:
    return Rollout(
        group=prompt.group, sibling=sibling, prompt=prompt, token_ids=done.token_ids,
        logprobs=done.logprobs, mask=done.mask, text=done.text, truncated=done.truncated,
        version_min=done.version_min, version_max=done.version_max, started=done.started,
        finished=done.finished, running=done.running, versions=done.versions,
        routes=join_routes([(done.routes, len(prompt.token_ids) + len(done.token_ids))]),
    )  # fmt: skip


async def _all(calls: Iterable[Awaitable[object]]) -> None:
    """Wait for all calls, then raise the first error, if any."""
    for done in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # or a crash of the host may leave an empty file
    partial.rename(path)
