"""Client of a vllm service: routes requests to replicas and collects completions.

    sample() -> least loaded replica -> submit (coalesced) ... port -> future of the completion
                     ^ open requests                 |
                     `------- the replica died ------'

Rank 0 of a replica takes requests and answers; its other ranks follow it. When a replica dies, the
supervisor calls `lost`: its open requests go to other replicas, or wait. `restore` adds the replica
that replaces it, with the newest weights.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from forgedsl.lower import job as spec
from forgedsl_runtime.coalesce import Coalescer
from forgedsl_runtime.data_types import Completion, Message, Request
from forgedsl_runtime.endpoints import ServiceError, ServiceFailure
from forgedsl_runtime.proofs.publication import Arrival, text
from forgedsl_runtime.services.straggler_detection import SLOW, WINDOW, StragglerDetector
from forgedsl_runtime.transports import tree
from forgedsl_runtime.transports.base import Manifest
from forgedsl_runtime.upstream.monarch import Channel, Mesh

PROBE_GAPS = {"f32": 2e-3, "bf16": 0.5, "f16": 0.1, "fp8": 2.5}
"""largest difference in log-prob between two correct implementations of one model, by the dtype of
the weights. fp8 weights are rounded to 3 bits of mantissa. With random weights, the worst case, the
difference was 0.35 on average and at most 1.96 (4B model, 160,000 tokens, one H200)"""
GROWTH = 4.0
"""fp8: the gap of a publication may be this many times that of the first one"""

FULL, FEW = 1.25, 4
"""a trajectory stays on its replica while that has at most FULL * n + FEW open requests, where n is
the number of open requests of the least loaded replica. With more, waiting costs more than
recomputing the KV cache"""


def probe_limit(dtypes: Collection[str], first: float | None) -> float:
    """Return the largest allowed gap of the log-probs of the probe. With fp8 weights the gap
    depends on the model, so the limit of later publications is a multiple of the first gap."""
    limit = max(PROBE_GAPS[dtype] for dtype in dtypes)
    if "fp8" not in dtypes or first is None:
        return limit
    return min(limit, max(PROBE_GAPS["bf16"], GROWTH * first))


@dataclass(slots=True)
class ReplicaAffinity:
    """Replica of a trajectory: after the first answer, later turns go to the replica whose prefix
    cache holds the earlier ones."""

    prompt: list[int]
    replica: Replica | None = None


@dataclass(slots=True)
class OpenRequest:
    """An open request and the future of its completion."""

    request: Any
    future: asyncio.Future[Completion]
    home: ReplicaAffinity
    tenant: bool = False
    """True if another service than that of the engine asked"""
    replica: Replica | None = None
    """the replica that works on it now"""


@dataclass(slots=True)
class Replica:
    """One engine and its open requests."""

    mesh: Mesh
    alive: bool = True
    outstanding: dict[str, OpenRequest] = field(default_factory=dict)
    receiver: Any = None
    submitter: Coalescer[Any, None] | None = None
    aborter: Coalescer[str, None] | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    relay: Any = None
    """address at which it relays weights to others"""


class GeneratorClient:
    """All replicas of one vllm service; `tell` is called with a warning about a slow replica.
    `aborts`: its actors can end requests that nobody waits for any more. A `tenant` has no
    replicas: its requests go to those of `engine`, under its name."""

    def __init__(
        self,
        service: spec.Sampler,
        meshes: Sequence[Mesh],
        on_failure: Callable[[Mesh, str], None],
        tell: Callable[[str], object] = lambda text: None,
        *,
        aborts: bool = False,
        engine: GeneratorClient | None = None,
        tenant: str = "",
    ) -> None:
        self.service = service
        self.num_open = 0
        """requests that are not answered yet"""
        self._engine = engine or self
        self._tenant = tenant
        self._aborts = aborts
        self.replicas = [Replica(mesh) for mesh in meshes]
        self._on_failure = on_failure
        text = "{} takes {:.1f} times as long per token as the other replicas (median of {})"
        self._pace = StragglerDetector(tell, text, WINDOW, SLOW)
        self._ids = itertools.count()
        self._turn = itertools.count()
        self._unassigned: list[OpenRequest] = []
        """requests that wait because no replica is alive"""
        self._weights: tuple[Manifest, bool] | None = None
        self._first_gap: float | None = None
        """gap of the probe at the first publication"""
        self._loading = asyncio.Lock()

    async def start(self) -> None:
        """Open the ports and start the engine loops."""
        for replica in self.replicas:
            await self._open(replica)

    async def sample(
        self,
        token_ids: list[int],
        sampling: spec.Sampling,
        seed: int,
        grades: tuple[int, ...] = (),
        home: ReplicaAffinity | None = None,
    ) -> Completion:
        """Sample a completion on the replica that the routing policy picks, or on the `home`
        replica. `grades` are token ids: the log-prob of each as the first token of the completion
        is returned too. A call that is cancelled ends its request in the engine."""
        ident = str(next(self._engine._ids))
        open_request = OpenRequest(
            self._request(ident, token_ids, sampling, seed, grades),
            asyncio.get_running_loop().create_future(),
            home or ReplicaAffinity(token_ids),
            tenant=self._engine is not self,
        )
        self._engine._hand_out(open_request)
        self.num_open += 1
        try:
            return await open_request.future
        finally:
            self.num_open -= 1
            if open_request.replica is not None:
                open_request.replica.outstanding.pop(ident, None)
                if open_request.future.cancelled() and open_request.replica.aborter is not None:
                    open_request.replica.aborter.post(ident).add_done_callback(_aborted)

    async def load(self, manifest: Manifest, *, keep: bool, host: int = 0) -> Arrival:
        """Load weights that are published on `host` into all replicas; return when all live ones
        have loaded them. The result is the arrival at the replica that verified the fewest tensors.
        With `keep`, running completions keep their KV caches; otherwise these are recomputed.

        Raises:
            ServiceError: a replica holds other weights than those published, or computes other
                log-probs with them than the trainer.
        """
        async with self._loading:
            alive = [replica for replica in self.replicas if replica.alive]
            if manifest.transport == "tree":
                manifest = await self._with_tree(manifest, host, alive)
            self._weights = manifest, keep
            found = await asyncio.gather(*(self._load(replica) for replica in alive))
            return min((each for each in found if each is not None), default=Arrival(),
                       key=lambda each: each.proved)  # fmt: skip

    def lost(self, mesh: Mesh) -> int:
        """Mark the replica on `mesh` as dead and route its open requests again; return their
        number."""
        replica = next(r for r in self.replicas if r.mesh is mesh)
        replica.alive = False
        for task in replica.tasks:
            task.cancel()
        replica.tasks.clear()
        open_requests, replica.outstanding = list(replica.outstanding.values()), {}
        for open_request in open_requests:
            self._hand_out(open_request)
        return len(open_requests)

    async def restore(self, dead: Mesh, mesh: Mesh) -> None:
        """Add the replica on `mesh`, which replaces `dead`."""
        index = next(i for i, r in enumerate(self.replicas) if r.mesh is dead)
        replica = Replica(mesh)
        await self._open(replica)
        async with self._loading:  # no weight swap may come between its load and its first request
            if self._weights is not None:
                await self._load(replica)
            self.replicas[index] = replica
        waiting, self._unassigned = self._unassigned, []
        for open_request in waiting:
            self._hand_out(open_request)

    def close(self) -> None:
        for replica in self.replicas:
            for task in replica.tasks:
                task.cancel()

    def _request(
        self,
        ident: str,
        token_ids: list[int],
        sampling: spec.Sampling,
        seed: int,
        grades: tuple[int, ...],
    ) -> Any:
        return Request(
            id=ident, token_ids=token_ids, sampling=sampling, seed=seed, grades=grades,
            tenant=self._tenant,
        )  # fmt: skip

    async def _open(self, replica: Replica) -> None:
        port, replica.receiver = Channel.open()
        replica.submitter = Coalescer(self._submitter(replica))
        if self._aborts:
            replica.aborter = Coalescer(self._aborter(replica))
        await replica.mesh.call("serve", port)
        replica.tasks.append(asyncio.create_task(self._receive(replica)))

    @staticmethod
    async def _with_tree(manifest: Manifest, host: int, alive: Sequence[Replica]) -> Manifest:
        """Return the manifest with a broadcast tree over live replicas; dead ones are left out."""
        for replica in alive:
            with suppress(ServiceError):  # the supervisor notices the death
                replica.relay = replica.relay or await replica.mesh.one(0, "relay")
        members = [(r.mesh.name, r.mesh.on.start, r.relay) for r in alive if r.relay is not None]
        service = alive[0].mesh.service if alive else ""
        return replace(manifest, tree=tree.plan_tree(host, service, members))

    async def _load(self, replica: Replica) -> Arrival | None:
        """Load the newest weights into a replica. If it dies meanwhile, `restore` loads them
        later."""
        assert self._weights is not None
        manifest, keep = self._weights
        mesh = replica.mesh
        try:
            # the actor of an extension's kind may return None
            found: Arrival = await mesh.one(0, "load", manifest, keep) or Arrival()
        except ServiceError as error:
            if not error.died:
                raise
            return None
        if found.base_faults:
            how = "the adapter is added to other weights than the trainer's"
            self._refuse(replica, f"{how}: {text(list(found.base_faults))}")
        if found.faults:
            how = (
                f"version {manifest.version} of the weights changed on its way by "
                f"{manifest.transport}"
            )
            if len(found.faults) == len(manifest.digests or ()):
                how = (
                    f"no tensor of version {manifest.version} of the weights arrived by "
                    f"{manifest.transport}"
                )
            self._refuse(replica, f"{how}: {text(list(found.faults))}")
        dtypes = {str(self.service.precision)}
        dtypes |= {manifest.probe.dtype} if manifest.probe is not None else set()
        limit = probe_limit(dtypes, self._first_gap)
        if self._first_gap is None:
            self._first_gap = found.gap
        if found.gap is not None and not found.gap <= limit:
            message = (
                f"version {manifest.version} of the weights arrived damaged: log-probs of a fixed "
                f"text differ by {found.gap:.3g} from the trainer's ({limit:g} is allowed)"
            )
            if found.proved:
                message += (
                    f", although its {found.proved} tensors equal the published ones bit for bit"
                )
            self._refuse(replica, message)
        return found

    @staticmethod
    def _refuse(replica: Replica, message: str) -> None:
        mesh = replica.mesh
        raise ServiceError(
            ServiceFailure(service=mesh.service, origin=mesh.origin, message=message)
        )

    def _hand_out(self, open_request: OpenRequest) -> None:
        if open_request.future.done():
            return
        replica = self._route(open_request.home)
        if replica is None:
            self._unassigned.append(open_request)
            return
        replica.outstanding[open_request.request.id] = open_request
        open_request.replica = open_request.home.replica = replica
        assert replica.submitter is not None
        sent = replica.submitter.post(open_request.request)
        sent.add_done_callback(lambda done: _submitted(done, open_request))

    def _route(self, home: ReplicaAffinity) -> Replica | None:
        alive = [replica for replica in self.replicas if replica.alive]
        if not alive:
            return None
        if (known := home.replica) is not None and known.alive:
            least = min(len(replica.outstanding) for replica in alive)
            if len(known.outstanding) <= FULL * least + FEW:
                return known
        if self.service.route == "least_loaded":
            return min(alive, key=lambda r: len(r.outstanding))
        if self.service.route == "sticky":  # all requests of a group go to one replica
            return alive[zlib.crc32(repr(home.prompt).encode()) % len(alive)]
        return alive[next(self._turn) % len(alive)]

    def _submitter(self, replica: Replica) -> Callable[[Sequence[Any]], Any]:
        async def submit(requests: Sequence[Any]) -> list[None]:
            await replica.mesh.one(0, "submit", list(requests))
            return [None] * len(requests)

        return submit

    def _aborter(self, replica: Replica) -> Callable[[Sequence[str]], Any]:
        async def abort(idents: Sequence[str]) -> list[None]:
            await replica.mesh.one(0, "abort", list(idents))
            return [None] * len(idents)

        return abort

    async def _receive(self, replica: Replica) -> None:
        while True:
            message: Message = await replica.receiver.recv()
            if message.error:
                self._on_failure(replica.mesh, message.error.strip().splitlines()[-1])
                return
            for completion in message.completions:
                open_request = replica.outstanding.get(completion.id)
                of_tenant = open_request is not None and open_request.tenant
                # a judge's token takes as long as its prompt, and says nothing of the pace
                if (taken := len(completion.token_ids)) and not of_tenant:
                    where = f"{replica.mesh.name} on host {replica.mesh.on.start}"
                    self._pace.record_time(
                        where, (completion.finished - completion.started) / taken
                    )
                if open_request is not None and not open_request.future.done():
                    open_request.future.set_result(completion)


def _aborted(done: asyncio.Future[None]) -> None:
    """Raise the error of an abort, except if the process has died: then the request has ended
    too."""
    error = None if done.cancelled() else done.exception()
    if error is not None and not (isinstance(error, ServiceError) and error.died):
        raise error


def _submitted(done: asyncio.Future[None], open_request: OpenRequest) -> None:
    """Fail a request that could not be delivered. If the process is dead, `lost` routes it
    again."""
    error = None if done.cancelled() else done.exception()
    died = isinstance(error, ServiceError) and error.died
    if error is not None and not died and not open_request.future.done():
        open_request.future.set_exception(error)
