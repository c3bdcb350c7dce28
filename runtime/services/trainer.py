"""Client of a trainer: log-probs of any, steps and weights of one that is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from forgedsl.runtime.coalesce import Coalescer
from forgedsl.runtime.data_types import Batch, Rollout, Sample, StepResult
from forgedsl.runtime.services.straggler_detection import LEAST, PROBES, SLOW_RANK, Pace
from forgedsl.runtime.transports.base import Manifest
from forgedsl.runtime.upstream.monarch import Mesh

GAUGE_SECONDS = 10.0
"""between two times that ranks are compared, which takes a hundredth of it"""


class TrainerClient:
    """One mesh of ranks; `tell` hears of one that the others wait for."""

    def __init__(self, mesh: Mesh, tell: Callable[[str], object] | None = None) -> None:
        self.mesh = mesh
        text = (
            "{} takes {:.1f} times as long as its peers, who wait for it in every step, for a "
            "product of matrices (median of {})"
        )
        self._pace = tell and Pace(tell, text, PROBES, SLOW_RANK, LEAST)
        self._gauged = 0.0
        asked = {name: partial(self._ask, name) for name in ("logprobs", "values")}
        self._asked: dict[str, Coalescer[list[Sample], list[list[float]]]] = {
            name: Coalescer(ask) for name, ask in asked.items()
        }

    async def logprobs(self, items: Sequence[Rollout | Sample]) -> list[list[float]]:
        """Per item, the log-prob of each completion token. Concurrent calls are merged."""
        return await self._asked["logprobs"].submit([as_sample(item) for item in items])

    async def values(self, items: Sequence[Rollout | Sample]) -> list[list[float]]:
        """Per item, what the value head says of each completion token."""
        return await self._asked["values"].submit([as_sample(item) for item in items])

    async def step(self, batch: Batch, loss: str) -> StepResult:
        """One optimizer step on all ranks; rank 0's result."""
        now = asyncio.get_running_loop().time()
        if self._pace and len(self.mesh.members) > 1 and now - self._gauged >= GAUGE_SECONDS:
            self._gauged = now
            for rank, seconds in enumerate(await self.mesh.call("gauge")):
                self._pace.took(self.mesh.who([rank]), seconds)
        result: StepResult = await self.mesh.first("step", batch, loss)
        return result

    async def leave(self) -> bool:
        """Have the step in progress end with the weights as before it, if it can be."""
        held = await self.mesh.call("hold")
        before = None if None in held else max(held)
        await self.mesh.call("leave_before", before)
        return before is not None

    async def evaluate(self, items: Sequence[Rollout | Sample], loss: str) -> dict[str, float]:
        """The loss of held-out items and its reports; rank 0's, of all ranks."""
        found: dict[str, float] = await self.mesh.first(
            "evaluate", [as_sample(item) for item in items], loss
        )
        return found

    async def publish(self) -> Manifest:
        """Snapshot the current weights."""
        manifest: Manifest = await self.mesh.first("publish")
        return manifest

    async def save(self, step: int) -> None:
        """Begin a checkpoint of the state of now; it may change when this returns."""
        await self.mesh.first("save", step)

    async def saved(self) -> None:
        """Return when the checkpoint is written."""
        await self.mesh.first("saved")

    async def export(self, target: str, dtype: str) -> str:
        """Write a Hugging Face export; its path."""
        path: str = await self.mesh.first("export", target, dtype)
        return path

    async def close(self) -> None:
        await asyncio.wait_for(self.mesh.call("close"), 10.0)

    async def _ask(self, what: str, groups: Sequence[list[Sample]]) -> list[list[list[float]]]:
        flat = [sample for group in groups for sample in group]
        values = iter(await self.mesh.first(what, flat))
        return [[next(values) for _ in group] for group in groups]


def as_sample(item: Rollout | Sample) -> Sample:
    """A rollout as the sequence that a model scores."""
    if isinstance(item, Sample):
        return item
    return Sample(
        token_ids=[*item.prompt.token_ids, *item.token_ids],
        num_prompt=len(item.prompt.token_ids),
        mask=item.mask,
    )
