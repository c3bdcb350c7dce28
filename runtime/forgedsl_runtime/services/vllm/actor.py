"""Generator: a vLLM engine in an actor, with continuous batching and hot weight updates.

One thread owns the engine. Between two engine steps it carries out the queued actions: add and
abort requests, load weights. Completions go back through the port given at `serve`, many per
message, as soon as they finish.

    submit(requests) --> inbox --> [ add | abort | load | step ... ] --> port (completions)

A tensor-parallel replica is one actor per rank. Only rank 0 takes requests and answers. Before each
step it broadcasts what it took from its inbox, so that all ranks do the same in the same order.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from monarch.actor import Port, concurrent_endpoint

from forgedsl.lower import job as spec
from forgedsl.types.flow import Role
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.data_types import Completion, Message, Request
from forgedsl_runtime.proofs.publication import Arrival, text, with_base
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.own_memory import count_own_memory
from forgedsl_runtime.services.vllm.upstream.start import preload
from forgedsl_runtime.transports import tree
from forgedsl_runtime.transports.base import Manifest, buffer_path
from forgedsl_runtime.transports.registry import fetch_weights, open_weights

PACKET = 16
"""completions of a message: the controller works on one packet while the next is decoded"""


@dataclass(frozen=True, slots=True)
class _Add:
    requests: list[Request]


@dataclass(frozen=True, slots=True)
class _Load:
    manifest: Manifest
    keep: bool


@dataclass(frozen=True, slots=True)
class _Abort:
    ids: list[str]


Action = _Add | _Load | _Abort


class Reply(Protocol):
    """Callback with the result of an action."""

    def __call__(self, arrival: Arrival | None, error: str = "", /) -> None: ...


@dataclass(slots=True)
class _InFlight:
    version: int
    started: float
    running: int
    tenant: str = ""
    """service that asked, if it is another than that of the engine; its version never changes"""
    swaps: list[tuple[int, int]] = field(default_factory=list)
    """for each swap to newer weights while the request ran: (version before the swap, number of
    tokens that the request had)"""

    def versions(self, last: int, tokens: int) -> tuple[tuple[int, int], ...]:
        """Return (version, number of tokens sampled under it); `last` is the version since the last
        swap."""
        ends = [*self.swaps, (last, tokens)]
        begins = [0, *(end for _, end in self.swaps)]
        runs = ((v, end - begin) for (v, end), begin in zip(ends, begins, strict=True))
        return tuple((version, count) for version, count in runs if count)


def _keeps_files(service: spec.VllmService, folder: Path) -> bool:
    """Return True if an engine holds the weights of the files in the model's folder as they are:
    there are files, and nothing quantizes them."""
    config = folder / "config.json"
    quantized = config.is_file() and "quantization_config" in json.loads(config.read_text("utf-8"))
    asked = service.weight_dtype != "auto" or "quantization" in service.extra
    return any(folder.glob("*.safetensors")) and not quantized and not asked


class Generator(ForgeActor):
    """One rank of one replica of a vllm service; `token` identifies the replica in the run.
    `tenants` are other services that it serves, each with the folder of its adapter (None: the
    base)."""

    def __init__(
        self, job: spec.Job, name: str, folder: str, *, threads: int, token: str,
        tenants: Mapping[str, str | None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        # Completions are decoded by all cores. This process makes no forks that tokenize.
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        service = job.services[name]
        assert isinstance(service, spec.VllmService)
        self.service = service
        self.model = job.models[service.model]
        self.seed = job.seed
        self.folder = Path(folder)
        self._shares_gpu = job.shares_gpu(name)
        self._tenants = {
            tenant: None if where is None else Path(where)
            for tenant, where in (tenants or {}).items()
        }
        self._threads = threads
        self._token = token
        self._inbox: queue.SimpleQueue[tuple[Action, Reply]] = queue.SimpleQueue()
        self._in_flight: dict[str, _InFlight] = {}
        self._version = 0
        self._random = False
        """True as long as the engine has the random weights of its start"""
        self._base_known = service.adapter_rank is None
        """False until the base weights are compared with the trainer's"""
        synced = any(Role.TRANSFERS in node.roles and node.to == name for node in job.nodes)
        self._starts_random = synced and "start" not in job.proofs.off
        self._is_proved = (
            not synced and "frozen" not in job.proofs.off and _keeps_files(service, self.folder)
        )
        self._proves_tenants = bool(self._tenants) and "frozen" not in job.proofs.off
        self._port: Port[Message] | None = None
        self._sender = ThreadPoolExecutor(1, "sender")
        # Import vLLM now, while the controller is still starting other processes.
        self._imported = self._worker.submit(preload, service.mesh.device)

    @concurrent_endpoint
    async def setup(self, run_key: str) -> dict[str, Any]:
        """Start the engine. It starts from random weights if a trainer publishes all weights to it
        (and the proof `start` is not off), since the first publication must replace them all.
        Otherwise it loads the weights in the model's folder."""
        return await self.set_up(self._setup, run_key)

    @concurrent_endpoint
    async def serve(self, port: Port[Message]) -> None:
        """Start the engine loop. Rank 0 sends completions to `port`; every rank sends its
        errors."""
        self._port = port
        threading.Thread(target=self._loop, name="engine", daemon=True).start()

    @concurrent_endpoint
    async def submit(self, requests: list[Request]) -> None:
        """Queue requests; they enter the engine before its next step."""
        self._inbox.put((_Add(requests), _no_reply))

    @concurrent_endpoint
    async def abort(self, ids: list[str]) -> None:
        """End requests without an answer, before the engine's next step."""
        self._inbox.put((_Abort(ids), _no_reply))

    @concurrent_endpoint
    async def load(self, manifest: Manifest, keep: bool) -> Arrival:
        """Load published weights between two engine steps, and check them. If the manifest has a
        probe, the result has its log-prob gap. If the manifest has digests, the result has the
        comparison of digests."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Arrival] = loop.create_future()

        def reply(found: Arrival | None, error: str = "") -> None:
            if error or found is None:
                loop.call_soon_threadsafe(done.set_exception, RuntimeError(error))
            else:
                loop.call_soon_threadsafe(done.set_result, found)

        await asyncio.to_thread(fetch_weights, manifest)
        self._inbox.put((_Load(manifest, keep), reply))
        return await done

    @concurrent_endpoint
    async def relay(self) -> Any:
        """Return the address at which this process relays received weights to others."""
        return tree.relay().address

    def release(self) -> None:
        tree.close()

    # ---- on the worker thread

    def _setup(self, run_key: str) -> dict[str, Any]:
        import torch

        torch.set_num_threads(self._threads)
        engine_rank = upstream.EngineRank(
            rank=self.rank,
            ranks=self.service.parallel.tp,
            rendezvous_file=buffer_path(run_key, self._token),
        )
        with count_own_memory() if self._shares_gpu else nullcontext():
            self._engine = upstream.Engine(
                self.service,
                self.model,
                self.folder,
                self.seed,
                engine_rank,
                random=self._starts_random,
                record=self._is_proved,
                tenants=self._tenants,
            )
        self._random = self._engine.random
        self.classes = {"engine": self._engine.class_name}
        begin = time.perf_counter()
        warm = spec.Sampling(max_tokens=4)
        for i in range(4):  # kernels are compiled at the first generation
            self._engine.add(f"warm-{i}", [1, 2, 3], warm, seed=i)
        for tenant in self._tenants:
            self._engine.add(f"warm-{tenant}", [1, 2, 3], warm, seed=0, tenant=tenant)
        while self._engine.num_running:
            self._engine.step()
        taken = self._engine.seconds | {
            "imports": self._imported.result(), "first tokens": time.perf_counter() - begin
        }  # fmt: skip
        facts: dict[str, Any] = {"seconds": {phase: round(s, 1) for phase, s in taken.items()}}
        if self._is_proved:
            facts["held"] = self._engine.gather_lists(self._engine.base)
        if self._proves_tenants:
            facts["tenants"] = self._prove_tenants()
        return facts

    def _prove_tenants(self) -> list[dict[str, Any]]:
        """Check that the engine holds the adapters of its tenants as their folders have them;
        return the lines of proofs.jsonl.

        Raises:
            RuntimeError: it does not.
        """
        lines = []
        for tenant, faults in self._engine.tenant_faults().items():
            if faults:
                raise RuntimeError(
                    f"the engine does not hold the adapter of {tenant} as {self._tenants[tenant]} "
                    f"has it: {text(faults)}"
                )
            tensors = self._engine.tenant_tensors(tenant)
            folder = str(self._tenants[tenant])
            lines.append({"proof": "frozen", "service": tenant, "folder": folder,
                          "tensors": tensors, "proved": tensors})  # fmt: skip
        return lines

    # ---- on the engine thread

    def _loop(self) -> None:
        assert self._port is not None
        taken: list[tuple[Action, Reply]] = []
        try:
            self._engine.enter_thread()
            while True:
                taken = self._take_inbox(block=not self._engine.num_running)
                for action in self._engine.broadcast_decisions([action for action, _ in taken]):
                    found = self._do(action)
                    if taken:  # on rank 0
                        taken[0][1](found)
                        taken.pop(0)
                if self._engine.num_running:
                    self._send(self._engine.step())
        except Exception as error:
            for _, reply in [*taken, *self._take_inbox(block=False)]:  # answer all pending actions
                reply(None, f"{type(error).__name__}: {error}")
            self._port.send(Message(error=traceback.format_exc()))

    def _take_inbox(self, *, block: bool) -> list[tuple[Action, Reply]]:
        """Return the actions queued since the last call; rank 0 broadcasts them, other ranks have
        none."""
        taken = [self._inbox.get()] if block and self.rank == 0 else []
        while True:
            try:
                taken.append(self._inbox.get_nowait())
            except queue.Empty:
                return taken

    def _do(self, action: Action) -> Arrival | None:
        """Carry out one action; for a load, return the check of the new weights."""
        match action:
            case _Add(requests):
                self._add(requests)
            case _Abort(ids):
                known = [ident for ident in ids if self._in_flight.pop(ident, None) is not None]
                self._engine.abort(known)
            case _Load(manifest, keep):
                written = self._engine.progress(keep=keep)
                for name, entry in self._policy_in_flight():
                    entry.swaps.append((self._version, written[name]))
                held = self._engine.load_weights(
                    open_weights(manifest), keep=keep, prove=manifest.digests is not None
                )
                if self._proves_tenants and manifest.digests is not None:
                    self._prove_tenants()
                self._version = manifest.version
                was_random, self._random = self._random, False
                found = Arrival(was_random=was_random)
                if manifest.digests is not None:
                    compared = self._engine.compare(manifest.digests, held)
                    found = replace(compared, was_random=was_random)
                if manifest.base is not None and not self._base_known:
                    self._base_known = True
                    base = self._engine.gather_lists(self._engine.base)
                    found = with_base(found, manifest.base, base)
                if manifest.probe is not None:
                    found = replace(found, gap=self._check(manifest))
                return found
        return None

    def _policy_in_flight(self) -> list[tuple[str, _InFlight]]:
        return [(name, entry) for name, entry in self._in_flight.items() if not entry.tenant]

    def _add(self, requests: list[Request]) -> None:
        for request in requests:
            if request.grades and len(request.token_ids) >= self._engine.max_length:
                self._refuse(request)
                continue
            running = self._engine.num_running
            version = 0 if request.tenant else self._version
            self._in_flight[request.id] = _InFlight(
                version, time.time(), running, tenant=request.tenant
            )
            self._engine.add(
                request.id, request.token_ids, request.sampling, request.seed, request.grades,
                request.tenant,
            )  # fmt: skip

    def _refuse(self, request: Request) -> None:
        """Answer a judge request without grades, because its prompt exceeds the context. This may
        happen, since the prompt contains text of a policy."""
        if self.rank == 0 and self._port is not None:
            now, version = time.time(), 0 if request.tenant else self._version
            answer = Completion(
                id=request.id, token_ids=[], logprobs=[], mask=[], text="", truncated=True,
                version_min=version, version_max=version, started=now, finished=now, running=0,
            )  # fmt: skip
            self._port.send(Message(completions=[answer]))

    def _check(self, manifest: Manifest) -> float:
        """Score the manifest's probe; completions that finish meanwhile are sent."""
        assert manifest.probe is not None
        name = f"probe-{manifest.version}"
        logprobs, finished = self._engine.score(name, list(manifest.probe.token_ids))
        self._send(finished)
        return manifest.probe.gap(logprobs)

    def _send(self, finished: list[upstream.Finished]) -> None:
        """Pass completions to the thread that decodes and sends; the engine goes on meanwhile."""
        ended = [(done, self._in_flight.pop(done.request_id)) for done in finished]
        if ended and self.rank == 0:
            self._sender.submit(self._deliver, ended, self._version, time.time())

    # ---- on the sender's thread

    def _deliver(
        self, ended: list[tuple[upstream.Finished, _InFlight]], version: int, now: float
    ) -> None:
        assert self._port is not None
        try:
            for first in range(0, len(ended), PACKET):
                packet = ended[first : first + PACKET]
                texts = self._engine.texts([done for done, _ in packet])
                completions = [
                    self._complete(done, entry, version, now, text)
                    for (done, entry), text in zip(packet, texts, strict=True)
                ]
                self._port.send(Message(completions=completions))
        except Exception:
            self._port.send(Message(error=traceback.format_exc()))

    def _complete(
        self, done: upstream.Finished, entry: _InFlight, version: int, now: float, text: str
    ) -> Completion:
        mask = [math.isfinite(value) for value in done.logprobs]
        version = entry.version if entry.tenant else version
        return Completion(
            id=done.request_id, token_ids=done.token_ids,
            logprobs=[v if ok else 0.0 for v, ok in zip(done.logprobs, mask, strict=True)],
            mask=mask, text=text, truncated=done.truncated,
            version_min=entry.version, version_max=version, started=entry.started, finished=now,
            running=entry.running, versions=entry.versions(version, len(done.token_ids)),
            grades=done.grades, routes=None if done.routes is None else done.routes.wait(),
        )  # fmt: skip


def _no_reply(_arrival: Arrival | None, _error: str = "") -> None:
    pass
