"""A torchtitan model on a mesh of ranks that computes log-probs: the frozen reference, and the base
of the trainer.

    samples --pack--> microbatches --model--> hidden --head--> one number per token
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from monarch.actor import concurrent_endpoint
from torch import Tensor

from forgedsl.lower import job as spec
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.context_parallel import shard_microbatch
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.losses import token_logprobs
from forgedsl_runtime.losses.logprobs import whole_tiles
from forgedsl_runtime.packing import Microbatch, pack
from forgedsl_runtime.proofs.frozen import RandomWeights, Whole, digests
from forgedsl_runtime.services.titan import warm_up
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream import value_head
from forgedsl_runtime.services.titan.upstream.attention import Segments
from forgedsl_runtime.services.titan.upstream.failed_pass import forgotten_if_failed
from forgedsl_runtime.services.titan.upstream.kept_weights import KeptWeights
from forgedsl_runtime.services.titan.upstream.router import set_routes

FIXED_SEED, FIXED_TOKENS = 5, 12
"""of a text that is always the same"""


class TitanActor(ForgeActor):
    """A torchtitan model on a mesh of ranks: base of `ReferenceModel` and the trainer."""

    def __init__(
        self,
        job: spec.Job,
        name: str,
        folder: str,
        *,
        world: int,
        threads: int,
        rendezvous: tuple[str, int],
    ) -> None:
        super().__init__()
        self.job = job
        self.name = name
        service = job.services[name]
        assert isinstance(service, spec.TitanService)
        self.service = service
        self.model_spec = job.models[service.model]
        self.folder = Path(folder)
        self.world = world
        self._rendezvous = rendezvous
        self._threads = threads

    @concurrent_endpoint
    async def setup(self, run_dir: str, run_key: str, resume_step: int | None) -> dict[str, Any]:
        """Build and load the model; return facts about it."""
        return await self.set_up(self._setup, Path(run_dir), run_key, resume_step)

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return the log-probs of the completion tokens of each sample under the current
        weights."""
        return await self.run(self._logprobs, samples)

    @concurrent_endpoint
    async def base_logprobs(
        self, samples: Sequence[Sample], temperature: float
    ) -> list[list[float]]:
        """Return the log-probs of the completion tokens of each sample under the weights without
        adapters, which never change."""
        return await self.run(self._base_logprobs, samples, temperature)

    @concurrent_endpoint
    async def values(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return the value head's output at the position that predicts each completion token."""
        return await self.run(self._values, samples)

    def _setup(self, run_dir: Path, run_key: str, resume_step: int | None) -> dict[str, Any]:
        torch.set_num_threads(self._threads)
        self._build()
        if any(self.folder.glob("*.safetensors")):
            titan.load_hf_weights(self.titan, self.folder)
        value_head.load(self.titan.model, self.folder)
        self.titan.model.eval().requires_grad_(False)
        return {"parameters": self.titan.size}

    def _build(self) -> None:
        # The hosts of a mesh may be workers on one machine. Then each of them sees all GPUs of the
        # machine, so the local rank counts over all of them.
        local = self.rank % max(self.service.mesh.procs, torch.cuda.device_count())
        self.parts = titan.init_distributed(
            self.service.mesh.device, self.rank, local, self.world, *self._rendezvous,
            offload=self.service.offload,
        )  # fmt: skip
        self.titan = titan.build_model(self.model_spec, self.service, self.folder, self.parts)
        self.classes = self.titan.classes
        self._kept = KeptWeights(self.titan.model) if self.service.keep_weights else None

    def _pack(
        self, samples: Sequence[Sample], *, pairs: bool = False, batch_invariant: bool = False
    ) -> list[Microbatch]:
        shape = self.service.batch
        degrees = self.service.parallel
        # With `ep`, ranks of `tp` divide the tokens of a row among them, and need as many each.
        parts = self.titan.context.size * (degrees.tp if degrees.ep > 1 else 1)
        return pack(
            samples, seq_len=shape.seq_len, rows=shape.rows, rank=self.titan.dp_rank,
            world=self.titan.dp_size, pairs=pairs, flat=self.titan.flat, share=shape.pack,
            batch_invariant=batch_invariant, parts=parts, same_shape=degrees.ep > 1,
        )  # fmt: skip

    def _logprobs(
        self, samples: Sequence[Sample], temperature: float | None = None
    ) -> list[list[float]]:
        divisor = self.service.temperature if temperature is None else temperature
        return self._of_tokens(
            samples, lambda h, w, shared, m: _token_logprobs(h, w, m, divisor, shared)
        )

    def _fixed_sample(self) -> Sample:
        """Return a text that is always the same."""
        draw = random.Random(FIXED_SEED)
        token_ids = [draw.randrange(self.titan.config.vocab_size) for _ in range(FIXED_TOKENS)]
        return Sample(token_ids=token_ids, num_prompt=1, mask=[True] * (FIXED_TOKENS - 1))

    def _base_logprobs(self, samples: Sequence[Sample], temperature: float) -> list[list[float]]:
        with self.titan.as_base():
            return self._logprobs(samples, temperature)

    def _values(self, samples: Sequence[Sample]) -> list[list[float]]:
        return self._of_tokens(
            samples,
            lambda h, w, shared, m: self.titan.values(whole_tiles(rows_of(h, m)))[: len(m.labels)],
        )

    def _of_tokens(
        self, samples: Sequence[Sample], of_rows: Callable[..., Tensor]
    ) -> list[list[float]]:
        """Return one number per completion token of each sample; every rank gets all of them."""
        plain = [
            Sample(
                token_ids=s.token_ids,
                num_prompt=s.num_prompt,
                mask=[True] * len(s.mask),
                row_starts=s.row_starts,
                routes=s.routes,
            )
            for s in samples
        ]
        found: dict[int, list[float]] = {}

        def of(micro: Microbatch, *args: Any) -> Tensor:
            values = of_rows(*args, micro)
            members = (micro.members[s] for s in micro.seq_id.tolist())
            for i, value in zip(members, values.tolist(), strict=True):
                found.setdefault(i, []).append(value)
            return values

        # Concurrent calls are merged into one batch, so the result of a sample must not depend on
        # the samples beside it.
        packed = self._pack(plain, batch_invariant=True)
        micros = [
            shard_microbatch(micro, self.titan.context).to(self.titan.device) for micro in packed
        ]
        with torch.no_grad():
            self._run(micros, of)
        if self.titan.pipeline is not None:
            found = self.titan.pipeline.broadcast_from_last(found)
        if (ranks := self.titan.dp_size * self.titan.context.size) > 1:
            parts: list[dict[int, list[float]]] = [{}] * ranks
            dist.all_gather_object(parts, found, group=self._dp_group())
            # Ranks that share a sequence hold its tokens in rank order.
            found = {i: [v for part in parts for v in part.get(i, ())] for i in range(len(plain))}
        # The first token of a sample without prompt has no prediction; its number is 0 by
        # definition.
        return [[0.0] * (len(s.mask) - len(found.get(i, ()))) + found.get(i, [])
                for i, s in enumerate(plain)]  # fmt: skip

    def _run(self, micros: Sequence[Microbatch], head: Callable[..., Tensor]) -> None:
        """Run microbatches through the model and `head(micro, hidden, weight, shared)`. If
        gradients are enabled, run the backward pass of the head's result too. After an error the
        next call is as if this one had not been made, apart from gradients: with some of this
        call, or without those of earlier ones, they can only be discarded."""
        train = torch.is_grad_enabled()

        def of(i: int, hidden: Tensor | None) -> Any:
            micro = micros[i]
            attention = Segments(micro.bounds, micro.longest) if self.titan.flat else micro.mask()
            taken = micro.tokens if hidden is None else hidden
            return self.titan.hidden_to(partial(head, micro), taken, micro.positions, attention)

        with forgotten_if_failed(self.titan.model):
            if self.titan.pipeline is not None:
                shapes = [tuple(micro.tokens.shape) for micro in micros]
                self.titan.pipeline.run(self.titan.model, shapes, of, train=train)
                return
            try:
                for i in range(len(micros)):
                    if train:
                        self._begin_microbatch()
                        if self._kept is not None:
                            self._kept.begin(last=i == len(micros) - 1)
                    with self._replaying(micros[i]):
                        value = of(i, None)
                        if train:
                            value.backward()
                if train and self._kept is not None:
                    self._kept.finish()
            finally:
                if self._kept is not None:
                    self._kept.release()

    @contextmanager
    def _replaying(self, micro: Microbatch) -> Iterator[None]:
        """Replay the routes of a microbatch, through its backward pass."""
        if not self.service.router_replay:
            yield
            return
        set_routes(self.titan.model, micro.routes)
        try:
            yield
        finally:
            set_routes(self.titan.model, None)

    def _begin_microbatch(self) -> None:
        """Hook before each microbatch of a training step."""

    def _digests(self) -> dict[str, Whole]:
        """Return the digest of each tensor of the base by its name in files (a collective); an
        empty dict if the model has no files, or if this proof is off."""
        if not self._has_files or "frozen" in self.job.proofs.off:
            return {}
        dtype = next(p.dtype for p in self.titan.model.parameters() if p.is_floating_point())
        return self._digests_in(dtype)

    @property
    def _has_files(self) -> bool:
        return any(self.folder.glob("*.safetensors"))

    def _digests_in(self, dtype: torch.dtype) -> dict[str, Whole]:
        """Return the digest of each tensor of the base, rounded to a dtype (a collective)."""
        found = digests(self.titan.export_tensors(dtype, base=True))
        if self.titan.pipeline is not None:
            stages: list[dict[str, Whole]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(stages, found)
            found = {name: value for stage in stages for name, value in stage.items()}
        return found

    def _facts_of_tenants(self) -> dict[str, Any]:
        """Return what proves the base of the services that this one serves (a collective)."""
        tenants = self.job.tenants(self.name)
        held = self._digests() if tenants else {}
        return {"digests": held, "digests_of": tenants} if held else {}

    def _random_weights(self) -> dict[str, Any]:
        """Return the digests of random weights that a trained and a frozen service must both have
        (a collective). An empty dict if there are no two such services, or if this proof is off."""
        alike = [
            service.trained
            for service in self.job.trainers.values()
            if service.model == self.service.model and service.served_by is None
        ]
        if self._has_files or "frozen" in self.job.proofs.off or len({*alike}) < 2:
            return {}
        held = self._digests_in(titan.PUBLISHED[self.model_spec.dtype])
        made = RandomWeights(self.service.model, self.service.trained, held)
        return {"random_weights": made}

    def _dp_group(self) -> dist.ProcessGroup:
        """Return the group of ranks that hold other samples, or other tokens of the same
        samples."""
        group: dist.ProcessGroup = self.titan.parallel_dims.get_mesh("batch").get_group()
        return group


class ReferenceModel(TitanActor):
    """A frozen model that computes log-probs."""

    def _setup(self, run_dir: Path, run_key: str, resume_step: int | None) -> dict[str, Any]:
        facts = super()._setup(run_dir, run_key, resume_step)
        held = self._digests()
        facts |= ({"digests": held} if held else {}) | self._random_weights()
        if warm_up.engines_start(self.job, self.name):
            facts["seconds"] = {"first pass": warm_up.timed(self._warm_up)}
        return facts

    def _warm_up(self) -> None:
        """Compile and load the kernels of a forward pass; see `warm_up`."""
        self._logprobs([self._fixed_sample()])


def _token_logprobs(
    hidden: Tensor, weight: Tensor, micro: Microbatch, temperature: float, shared: dict[str, Any]
) -> Tensor:
    return token_logprobs(rows_of(hidden, micro), weight, micro.labels, temperature, **shared)


def rows_of(hidden: Tensor, micro: Microbatch) -> Tensor:
    """Select the hidden states that predict the scored tokens."""
    rows = hidden.flatten(0, 1)[micro.index]
    return rows if micro.exchange is None else micro.exchange(rows)
