"""Client of a trainer: log-probs and values of any model, steps and weights of a trained one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from forgedsl.lower import job as spec
from forgedsl_runtime.coalesce import Coalescer
from forgedsl_runtime.data_types import Batch, PassResult, Rollout, Sample, StepResult
from forgedsl_runtime.services.straggler_detection import (
    LEAST,
    PROBES,
    SLOW_RANK,
    StragglerDetector,
)
from forgedsl_runtime.transports.base import Manifest
from forgedsl_runtime.upstream.monarch import Mesh

GAUGE_SECONDS = 10.0
"""interval between two comparisons of ranks; a comparison takes about a hundredth of it"""


class TrainerClient:
    """Client of one mesh of ranks; `tell` is called with a warning about a slow rank. `replays`:
    its routers choose the experts that the sampler chose. With `base_at`, a temperature, its
    log-probs are those of the mesh's model without adapters."""

    def __init__(
        self,
        mesh: Mesh,
        tell: Callable[[str], object] | None = None,
        *,
        replays: bool = False,
        base_at: float | None = None,
    ) -> None:
        self.mesh = mesh
        self._replays = replays
        text = (
            "{} takes {:.1f} times as long as the other ranks for a matrix product (median of "
            "{}), and they wait for it in every step"
        )
        self._pace = tell and StragglerDetector(tell, text, PROBES, SLOW_RANK, LEAST)
        self._gauged = 0.0
        asked = {name: partial(self._ask, name) for name in ("logprobs", "values")}
        if base_at is not None:
            asked["logprobs"] = partial(self._ask, "base_logprobs", temperature=base_at)
        self._asked: dict[str, Coalescer[list[Sample], list[list[float]]]] = {
            name: Coalescer(ask) for name, ask in asked.items()
        }

    async def logprobs(self, items: Sequence[Rollout | Sample]) -> list[list[float]]:
        """Return the log-probs of the completion tokens of each item. Concurrent calls are
        merged."""
        samples = [as_sample(item, routes=self._replays) for item in items]
        return await self._asked["logprobs"].submit(samples)

    async def values(self, items: Sequence[Rollout | Sample]) -> list[list[float]]:
        """Return the value head's output at the completion tokens of each item."""
        samples = [as_sample(item, routes=self._replays) for item in items]
        return await self._asked["values"].submit(samples)

    async def step(self, batch: Batch, loss: str) -> StepResult:
        """Do the optimizer updates of one step on all ranks; return rank 0's result."""
        now = asyncio.get_running_loop().time()
        if self._pace and len(self.mesh.members) > 1 and now - self._gauged >= GAUGE_SECONDS:
            self._gauged = now
            for rank, seconds in enumerate(await self.mesh.call("gauge")):
                self._pace.record_time(self.mesh.describe_ranks([rank]), seconds)
        result: StepResult = await self.mesh.first("step", batch, loss)
        return result

    async def counts(self, samples: Sequence[Sample], loss: str) -> dict[str, float]:
        """Return the counts that the loss divides by, over all samples."""
        found: dict[str, float] = await self.mesh.first("counts", samples, loss)
        return found

    async def accumulate(
        self, samples: Sequence[Sample], loss: str, counts: dict[str, float] | None, *, first: bool
    ) -> PassResult:
        """Add the gradients of these samples to the accumulated ones; `apply` uses them. The
        `first` pass of an update discards earlier ones. If a pass fails, all are discarded."""
        passed: PassResult = await self.mesh.first("accumulate", samples, loss, counts, first)
        return passed

    async def apply(self, lr: float | None) -> StepResult:
        """Do one optimizer update with the accumulated gradients."""
        result: StepResult = await self.mesh.first("apply", lr)
        return result

    async def register_loss(self, name: str, loss: spec.Loss) -> None:
        """Add a loss that is not in the job."""
        await self.mesh.first("register_loss", name, loss)

    async def restore(self, step: int) -> int:
        """Load the state that `save` wrote as `step`; return its version."""
        version: int = await self.mesh.first("restore", step)
        return version

    async def abandon_step(self) -> bool:
        """End the step in progress with unchanged weights; False if that is not possible."""
        held = await self.mesh.call("pause")
        before = None if None in held else max(held)
        await self.mesh.call("abandon_before", before)
        return before is not None

    async def evaluate(self, items: Sequence[Rollout | Sample], loss: str) -> dict[str, float]:
        """Return the loss and its reports on held-out items, reduced over all ranks."""
        found: dict[str, float] = await self.mesh.first(
            "evaluate", [as_sample(item) for item in items], loss
        )
        return found

    async def publish(self) -> Manifest:
        """Snapshot the current weights."""
        manifest: Manifest = await self.mesh.first("publish")
        return manifest

    async def save(self, step: int) -> None:
        """Begin a checkpoint of the current state. When this returns, training may go on."""
        await self.mesh.first("save", step)

    async def saved(self) -> None:
        """Wait until the checkpoint is written."""
        await self.mesh.first("saved")

    async def export(self, target: str, dtype: str) -> str:
        """Write a Hugging Face export; return its path."""
        path: str = await self.mesh.first("export", target, dtype)
        return path

    async def close(self) -> None:
        await asyncio.wait_for(self.mesh.call("close"), 10.0)

    async def _ask(
        self, what: str, groups: Sequence[list[Sample]], *, temperature: float | None = None
    ) -> list[list[list[float]]]:
        more = () if temperature is None else (temperature,)
        flat = [sample for group in groups for sample in group]
        values = iter(await self.mesh.first(what, flat, *more))
        return [[next(values) for _ in group] for group in groups]


def tenants_of(job: spec.Job, meshes: Mapping[str, Mesh]) -> dict[str, TrainerClient]:
    """Return the clients of the frozen models that a trainer serves."""
    return {
        name: TrainerClient(meshes[service.served_by], base_at=service.temperature)
        for name, service in job.trainers.items()
        if service.served_by is not None
    }


def as_sample(item: Rollout | Sample, *, routes: bool = False) -> Sample:
    """Convert a rollout to a sequence that a model scores; `routes`: with its routes, if it has
    any."""
    if isinstance(item, Sample):
        return item if routes or item.routes is None else replace(item, routes=None)
    return Sample(
        token_ids=[*item.prompt.token_ids, *item.token_ids],
        num_prompt=len(item.prompt.token_ids),
        mask=item.mask,
        row_starts=item.starts,
        routes=item.routes if routes else None,
    )
