"""Client of a vllm service: routes completions to replicas and collects what they send back.

    sample() -> least loaded replica -> submit (coalesced) ... port -> future of the completion

Rank 0 of a replica takes requests and answers; its other ranks follow it. Every replica has a
receiver task on its port and a pending `watch` call that fails when a process of it dies. What
happens then is decided by the owner through `on_failure`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forgedsl.lower import job as spec
from forgedsl.runtime.actors.generator import Completion, Message, Request
from forgedsl.runtime.coalesce import Coalescer
from forgedsl.runtime.endpoints import ServiceError, ServiceFailure
from forgedsl.runtime.upstream.monarch import Channel, Mesh
from forgedsl.runtime.weight_sync import Manifest

PROBE_GAPS = {"f32": 2e-3, "bf16": 0.5, "f16": 0.1}
"""largest difference in log-prob between two correct implementations of one model"""


@dataclass(slots=True)
class Replica:
    """One engine and the requests it owes."""

    mesh: Mesh
    outstanding: dict[str, asyncio.Future[Completion]] = field(default_factory=dict)
    receiver: Any = None
    submitter: Coalescer[Request, None] | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class GeneratorClient:
    """All replicas of one vllm service."""

    def __init__(
        self,
        service: spec.VllmService,
        meshes: Sequence[Mesh],
        on_failure: Callable[[Mesh, str], None],
    ) -> None:
        self.service = service
        self.replicas = [Replica(mesh) for mesh in meshes]
        self._on_failure = on_failure
        self._ids = itertools.count()
        self._turn = itertools.count()

    async def start(self) -> None:
        """Open the ports and start the engine loops."""
        for replica in self.replicas:
            port, replica.receiver = Channel.open()
            replica.submitter = Coalescer(self._submitter(replica))
            await replica.mesh.call("serve", port)
            replica.tasks.append(asyncio.create_task(self._receive(replica)))

    async def sample(self, token_ids: list[int], sampling: spec.Sampling, seed: int) -> Completion:
        """One completion from the replica that the routing policy picks."""
        replica = self._route()
        request = Request(
            id=str(next(self._ids)), token_ids=token_ids, sampling=sampling, seed=seed
        )
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        replica.outstanding[request.id] = future
        try:
            assert replica.submitter is not None
            await replica.submitter.submit(request)
            return await future
        finally:
            replica.outstanding.pop(request.id, None)

    async def load(self, manifest: Manifest, *, reset_prefix_cache: bool) -> None:
        """Swap weights in all replicas; returns when all have them.

        Raises:
            ServiceError: a replica computes other log-probs than the trainer with these weights.
        """
        gaps = await asyncio.gather(
            *(r.mesh.one(0, "load", manifest, reset_prefix_cache) for r in self.replicas)
        )
        limit = PROBE_GAPS[self.service.dtype]
        for replica, gap in zip(self.replicas, gaps, strict=True):
            if gap is not None and not gap <= limit:
                mesh = replica.mesh
                message = (
                    f"version {manifest.version} did not arrive whole: its log-probs of a fixed "
                    f"text are off by {gap:.3g} (allowed {limit:g}) from the trainer's"
                )
                raise ServiceError(
                    ServiceFailure(service=mesh.service, origin=mesh.origin, message=message)
                )

    async def abort(self) -> None:
        """Drop all requests in flight, here and in the engines."""
        await asyncio.gather(*(r.mesh.one(0, "abort") for r in self.replicas))

    def close(self) -> None:
        for replica in self.replicas:
            for task in replica.tasks:
                task.cancel()

    def _route(self) -> Replica:
        if self.service.route == "least_loaded":
            return min(self.replicas, key=lambda r: len(r.outstanding))
        return self.replicas[next(self._turn) % len(self.replicas)]

    def _submitter(self, replica: Replica) -> Callable[[Sequence[Request]], Any]:
        async def submit(requests: Sequence[Request]) -> list[None]:
            await replica.mesh.one(0, "submit", list(requests))
            return [None] * len(requests)

        return submit

    async def _receive(self, replica: Replica) -> None:
        while True:
            message: Message = await replica.receiver.recv()
            if message.error:
                self._on_failure(replica.mesh, message.error.strip().splitlines()[-1])
                return
            for completion in message.completions:
                future = replica.outstanding.get(completion.id)
                if future is not None and not future.done():
                    future.set_result(completion)
