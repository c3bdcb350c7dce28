"""TitanTrainer: torchtitan's model, optimizer, scheduler and checkpoints, with the job's loss.

One actor per rank. `step` packs the batch, runs forward and backward over this rank's
microbatches with the generated loss in the lm_head's place, clips, and steps; `publish` snapshots
the weights for the generators; `save` and `export` write checkpoints.

    batch --pack--> microbatches --model--> hidden --loss.linear--> loss --backward--> step
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from monarch.actor import concurrent_endpoint
from torch import Tensor

from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl_runtime.actors.abandon_step import AbandonStep, StepAbandoned
from forgedsl_runtime.context_parallel import shard_microbatch
from forgedsl_runtime.data_types import Batch, PassResult, Sample, StepResult
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.packing import Microbatch
from forgedsl_runtime.proofs import first_batch, gaps
from forgedsl_runtime.proofs.publication import Digest
from forgedsl_runtime.services.titan import nodes, warm_up
from forgedsl_runtime.services.titan.device import PeakMemory, gauge
from forgedsl_runtime.services.titan.discarding import discarding
from forgedsl_runtime.services.titan.frozen import TitanActor, rows_of
from forgedsl_runtime.services.titan.traces import complete_traces, logprobs_by_sample
from forgedsl_runtime.services.titan.upstream import model as titan
from forgedsl_runtime.services.titan.upstream import optimizers, value_head
from forgedsl_runtime.services.titan.upstream.experts import Load
from forgedsl_runtime.services.titan.upstream.gathering import gather_tensor, gather_tensors
from forgedsl_runtime.services.titan.upstream.router import ReplayedShare
from forgedsl_runtime.services.titan.upstream.saving import Saver
from forgedsl_runtime.transports.base import Manifest, Probe, Ranks, Sender
from forgedsl_runtime.transports.registry import transport
from forgedsl_runtime.updates import combine_results, samples_by_update
from forgedsl_runtime.weight_folders import write_folder

PROBED = range(3)
"""publications with a probe: the initial weights, and those after the first two steps"""
COUNT = "number of tokens"
"""key of the token count, beside the loss and its reports; a name with spaces cannot clash"""


class TitanTrainer(TitanActor):
    """The actor of a trained model. `version` counts steps; a step may make several updates."""

    version = 0
    _publications = 0
    _held: dict[str, Tensor] | None = None
    """loss and reports of the passes whose gradients wait for `apply`"""
    _kernel = ""
    _trace: list[list[tuple[Microbatch, Tensor]]] | None = None
    """by loss of the step: log-probs of each microbatch of the update; None if they are not kept"""
    _gap_in_pass = False
    """True if the loss of the last step kept log-probs, so that the gap needs no forward pass of
    its own"""
    _term = 0
    """number of the loss whose passes run"""
    _compared: list[first_batch.Compared] | None = None
    """comparisons of the loss with its value in float64, one per microbatch; None except during
    this check"""
    _moved = False
    """True if there was an update since the last publication"""
    _base: Mapping[str, Digest] | None = None
    """digests of the weights that a published adapter is added to, once they are computed"""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._abandon = AbandonStep()
        self._known: set[str] = set()
        """losses that were checked on their first batch"""

    @concurrent_endpoint
    async def step(self, batch: Batch, loss: str) -> StepResult:
        """Do the optimizer updates of one step on the whole batch; every rank takes its share."""
        return await self.run(self._step, batch, loss)

    @concurrent_endpoint
    async def pause(self) -> int | None:
        """Pause the step in progress until `abandon_before`; return the microbatch before which it
        waits."""
        return self._abandon.pause()

    @concurrent_endpoint
    async def abandon_before(self, microbatch: int | None) -> None:
        """Abandon the step before this microbatch, or go on (None)."""
        self._abandon.decide(microbatch)

    @concurrent_endpoint
    async def evaluate(self, samples: Sequence[Sample], loss: str) -> dict[str, float]:
        """Return the loss and its reports on held-out samples under the current weights."""
        return await self.run(self._evaluate, samples, loss)

    @concurrent_endpoint
    async def counts(self, samples: Sequence[Sample], loss: str) -> dict[str, float]:
        """Return the counts that the loss divides by, such as its number of tokens."""
        return await self.run(self._counts, samples, loss)

    @concurrent_endpoint
    async def accumulate(
        self,
        samples: Sequence[Sample],
        loss: str,
        counts: dict[str, float] | None,
        first: bool = False,
    ) -> PassResult:
        """Do a forward and a backward pass. Gradients add up until `apply`; if it is the `first` of
        an update, earlier ones are discarded. A pass that fails discards all gradients."""
        return await self.run(self._accumulate, samples, loss, counts, first)

    @concurrent_endpoint
    async def apply(self, lr: float | None) -> StepResult:
        """Do one optimizer update with the gradients of `accumulate`. `lr`, if given, replaces the
        scheduled learning rate in this update only."""
        return await self.run(self._apply, lr)

    @concurrent_endpoint
    async def register_loss(self, name: str, loss: spec.Loss) -> None:
        """Add a loss that is not in the job."""
        self.losses[name] = LossFunction.from_job(loss)

    @concurrent_endpoint
    async def restore(self, step: int) -> int:
        """Load the state that `save` wrote as `step`; return its version."""
        return await self.run(self._restore, step)

    @concurrent_endpoint
    async def gauge(self) -> float:
        """Return the seconds for a fixed computation, the same on all ranks and without
        communication, to compare the speed of ranks."""
        return await self.run(gauge, self.titan.device)

    @concurrent_endpoint
    async def publish(self) -> Manifest | None:
        """Snapshot the weights for the generators; rank 0 returns the manifest."""
        return await self.run(self._publish)

    @concurrent_endpoint
    async def save(self, step: int) -> None:
        """Begin a checkpoint of model, optimizer and scheduler. When this returns, training may
        go on; `saved` waits for the files."""
        await self.run(self._save, step)

    @concurrent_endpoint
    async def saved(self) -> None:
        """Wait until the checkpoint is written."""
        await self.answer(asyncio.wrap_future(self._saved))

    @concurrent_endpoint
    async def export(self, target: str, dtype: str) -> str | None:
        """Write the weights in Hugging Face format, with the config and other files of the
        model."""
        return await self.run(self._export, Path(target), dtype)

    @concurrent_endpoint
    async def close(self) -> None:
        """Release shared memory and checkpoint threads."""
        await self.run(self._close)

    # ---- on the worker thread

    def _begin_microbatch(self) -> None:
        self._abandon.microbatch()

    def _setup(self, run_dir: Path, run_key: str, resume_step: int | None) -> dict[str, Any]:
        torch.set_num_threads(self._threads)
        self._traces = self.job.logging.record is not None or "gap" not in self.job.proofs.off
        self.losses = {name: LossFunction.from_job(loss) for name, loss in self.job.losses.items()}
        for loss in self.losses.values():
            loss.keeps_logprobs = self._traces
        self._build()
        assert self.service.optimizer is not None
        steps = (self.job.schedule.steps or 10**9) * nodes.most_updates(self.job, self.name)
        self.optimizers, self.schedulers = optimizers.build_optimizer(
            self.titan, self.service.optimizer, steps, self.parts
        )
        has_weights = any(self.folder.glob("*.safetensors"))
        self.checkpointer = titan.build_checkpointer(
            self.titan, folder=run_dir / "checkpoints", source=self.folder if has_weights else None,
            optimizers=self.optimizers, schedulers=self.schedulers, states={"train_state": self},
            parts=self.parts,
        )  # fmt: skip
        self.saver = Saver(self.checkpointer, self.titan.device)
        value_head.load(self.titan.model, self.folder)
        loaded = self.checkpointer.load(-1 if resume_step is None else resume_step)
        # A checkpoint restores the settings that it was trained with; set those of the job again.
        optimizers.set_optimizer(self.optimizers, self.schedulers, self.service.optimizer)
        dtype = titan.PUBLISHED[nodes.generator_dtype(self.job, self.name)]
        ranks = Ranks(rank=self.rank, world=self.world, gather_objects=self._gather_objects,
                      stages=self.service.parallel.pp)  # fmt: skip
        self.replayed = ReplayedShare(self.titan.model, self.titan.device)
        self.load = Load(self.titan.model, self.titan.config, self.titan.device)
        way = transport(nodes.transport_of(self.job, self.name))
        self._proves = "publications" not in self.job.proofs.off
        self.sender = Sender(way, run_key, dtype, gather_tensors, ranks, proves=self._proves)
        self.titan.model.train()
        facts = {"parameters": self.titan.size, "loaded": loaded, "version": self.version}
        facts |= self._facts_of_tenants()
        facts |= self._random_weights() if resume_step is None else {}
        with warm_up.unchanged(self.titan.model, self.titan.device):
            seconds = warm_up.prepare(self.job, self.name, self._warm_up, self._probe)
        facts |= {"seconds": seconds} if seconds else {}
        return facts

    def _warm_up(self) -> None:
        """Run the losses on made-up samples; see `warm_up`."""
        for name, samples in warm_up.samples_by_loss(self.job, self.name, self.titan, self.losses):
            if name:
                self._prove([(name, samples)])
                self._run_passes(self.losses[name], samples)
            else:
                self._run_model(samples)
            if self.job.tenants(self.name):
                self._base_logprobs(samples, self.service.temperature)
            self.optimizers.zero_grad()
        self._known.clear()

    def _run_model(self, samples: Sequence[Sample]) -> None:
        """Run the model forward and backward; the mean of its hidden states stands for a loss."""
        _, micros = self._pack_microbatches(None, samples)
        self._run(micros, lambda micro, hidden, *_: rows_of(hidden, micro).float().mean())

    def _gather_objects(self, mine: Any) -> list[Any]:
        """Gather an object from each rank, on all ranks."""
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine)
        return found

    def state_dict(self) -> dict[str, Any]:
        """State under the key "train_state" of torchtitan's checkpoint."""
        return {"version": torch.tensor(self.version)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = int(state["version"])

    def _step(self, batch: Batch, loss_name: str) -> StepResult:
        if self._held is not None:
            raise RunError(
                "gradients of forward_backward were not applied: call optim_step before step"
            )
        single = batch.epochs * batch.minibatches == 1
        possible = single and self.titan.pipeline is None
        with self._abandon.step(possible=possible), discarding(self._discard):
            try:
                return self._run_updates(batch, loss_name)
            except StepAbandoned:
                self._discard()
        return StepResult(
            version=self.version, loss=0.0, grad_norm=0.0, lr=0.0, tokens=0, metrics={}, kernel="",
            left=True,
        )  # fmt: skip

    def _run_updates(self, batch: Batch, loss_name: str) -> StepResult:
        opt = self.service.optimizer
        assert opt is not None
        peak = PeakMemory(self.titan.device, self.world)
        results: list[StepResult] = []
        traces: list[list[list[list[float]]]] = []
        by_sample: list[dict[int, list[float]]] = []
        stopped = False
        compared = [] if "gap" in self.job.proofs.off else gaps.chosen(batch)
        # After the first of several updates the weights are no longer those of the gap.
        in_pass = self._gap_in_pass and batch.epochs * batch.minibatches == 1
        found = {} if in_pass else self._gaps(compared)
        proved = self._prove([(loss_name, batch.samples), *batch.beside])
        for samples in samples_by_update(batch):
            terms = [(loss_name, samples), *batch.beside]
            self._trace = [[] for _ in terms] if self._traces else None
            results.append(self._update(terms, opt))
            by_sample = self._trace_by_sample(len(terms))
            traces += complete_traces(by_sample, [part for _, part in terms])
            if stopped := results[-1].skipped and opt.on_nan == "stop":
                break
        self.version += any(not result.skipped for result in results)
        self._trace = None
        self._gap_in_pass = bool(by_sample and by_sample[0])
        if in_pass and self._gap_in_pass:
            found = gaps.gaps(compared, [by_sample[0][each.at] for each in compared])
        recorded = traces if self.job.logging.record is not None else []
        whole = combine_results(results, batch, stopped=stopped)
        return replace(
            whole, version=self.version, gaps=found, logprobs=recorded, proofs=proved,
            peak_bytes=peak.read(),
        )  # fmt: skip

    def _gaps(self, compared: Sequence[gaps.Compared]) -> dict[str, float]:
        """Return the gaps of a few samples, after a forward pass of them."""
        if not compared:
            return {}
        every = self._logprobs([each.sample for each in compared])
        return gaps.gaps(
            compared,
            [list(compress(found, gaps.scored(each.sample)))
             for found, each in zip(every, compared, strict=True)],
        )  # fmt: skip

    def _prove(self, terms: Sequence[tuple[str, Sequence[Sample]]]) -> list[first_batch.Line]:
        """Check each loss on its first batch, once; return the results (a collective)."""
        found: list[first_batch.Line] = []
        off = self.job.proofs.off
        for name, samples in terms:
            if name in self._known or not samples:
                continue
            self._known.add(name)
            loss = self.losses[name]
            chosen = first_batch.few(samples, pairs=loss.paired)
            if "masks" not in off:
                evaluate = partial(self._evaluate, loss_name=name)
                found.append(first_batch.masks(name, chosen, evaluate))
            if "loss" not in off:
                self._compared = []
                self._evaluate(first_batch.spread(chosen), name)
                mine, self._compared = self._compared, None
                parts = self._gather_objects(mine) if self.world > 1 else [mine]
                every = [each for part in parts for each in part]
                found.append(first_batch.line_of(name, every, len(chosen)))
        return found

    def _trace_by_sample(self, terms: int) -> list[dict[int, list[float]]]:
        """Gather the log-probs of the last update from all ranks (a collective): by loss, those of
        each sample. An empty list if they are not kept, or if ranks share samples."""
        known = self.titan.context.size == 1 and self.titan.pipeline is None
        if self._trace is None or not known:
            return []
        mine = [logprobs_by_sample(passes) for passes in self._trace]
        parts = self._gather_objects(mine) if self.world > 1 else [mine]
        return [{k: v for part in parts for k, v in part[at].items()} for at in range(terms)]

    def _update(
        self, terms: Sequence[tuple[str, Sequence[Sample]]], opt: spec.Optimizer
    ) -> StepResult:
        """Do one optimizer update; skip it if loss or gradient norm is not finite. Each loss is
        normalized over its own samples; their gradients add up."""
        sums = {"loss": torch.zeros(()), COUNT: torch.zeros(())}
        kernel = ""
        self.load.begin()
        self.replayed.begin()
        for index, (name, samples) in enumerate(terms):
            self._term = index
            found, micros, kernel = self._run_passes(self.losses[name], samples)
            sums[COUNT] += sum(micro.num_tokens for micro in micros)
            if len(terms) > 1:
                again = any(name == other for other, _ in terms[:index])
                whole = {"loss": sums["loss"] + found["loss"].cpu()}
                if "entropy" in found:  # a loss that reads only the value head has no entropy
                    whole["entropy"] = sums.get("entropy", found["entropy"])
                found = _named(found, f"{name}_{index + 1}" if again else name) | whole
            sums |= found
        return self._apply_gradients(sums, kernel, opt)

    def _apply_gradients(
        self, sums: dict[str, Tensor], kernel: str, opt: spec.Optimizer, lr: float | None = None
    ) -> StepResult:
        """Update the weights with the accumulated gradients. `sums` are the loss and reports,
        summed over all passes whose gradients were accumulated."""
        grad_norm = float(titan.clip_grad_norm(self.titan, opt.max_norm, self.parts))
        reduced = self._reduce(sums)
        total_loss = reduced.pop("loss")
        total_tokens = int(reduced.pop(COUNT))
        learning_rate = self.schedulers.schedulers[0].get_last_lr()[0] if lr is None else lr
        finite = math.isfinite(grad_norm) and math.isfinite(total_loss)
        if finite:
            self._moved |= learning_rate > 0 and grad_norm > 0
            with optimizers.with_learning_rate(self.optimizers, lr):
                self.optimizers.step()
            self.schedulers.step()
        self.optimizers.zero_grad()
        return StepResult(
            version=self.version, loss=total_loss, grad_norm=grad_norm, lr=learning_rate,
            tokens=total_tokens, metrics=reduced, kernel=kernel, skipped=not finite,
            experts_load=self.load.load_imbalance(),
            routes_changed=self.replayed.changed() if self.service.router_replay else None,
        )  # fmt: skip

    def _discard(self) -> None:
        """Discard what the passes of an update have left."""
        self._held = self._trace = self._compared = None
        self.optimizers.zero_grad()

    def _accumulate(
        self, samples: Sequence[Sample], loss_name: str, counts: dict[str, float] | None,
        first: bool,
    ) -> PassResult:  # fmt: skip
        if first or self._held is None:
            self._discard()
            self.load.begin()
            self.replayed.begin()
        with discarding(self._discard, earlier=self._held is not None):
            found, micros, self._kernel = self._run_passes(self.losses[loss_name], samples, counts)
            found[COUNT] = torch.tensor(float(sum(micro.num_tokens for micro in micros)))
            held = self._held or {}
            self._held = {n: held.get(n, torch.zeros(())) + v.cpu() for n, v in found.items()} | {
                n: v for n, v in held.items() if n not in found
            }
            told = self._reduce(found)
        return PassResult(
            loss=told.pop("loss"), tokens=int(told.pop(COUNT)), metrics=told, kernel=self._kernel
        )

    def _apply(self, lr: float | None) -> StepResult:
        assert self.service.optimizer is not None
        if self._held is None:
            raise RunError("there are no gradients: call forward_backward before optim_step")
        with discarding(self._discard, earlier=self._held is not None):
            held, self._held = self._held, None
            done = self._apply_gradients(held, self._kernel, self.service.optimizer, lr)
        self.version += not done.skipped
        return replace(done, version=self.version)

    def _counts(self, samples: Sequence[Sample], loss_name: str) -> dict[str, float]:
        loss = self.losses[loss_name]
        counted, _ = self._pack_microbatches(loss, samples)
        return {name: float(value) for name, value in self._totals(loss, counted).items()}

    def _pack_microbatches(
        self, loss: LossFunction | None, samples: Sequence[Sample]
    ) -> tuple[list[Microbatch], list[Microbatch]]:
        """Return two lists of microbatches: whole ones, to count tokens, and those that this rank
        computes. They differ under context parallelism, where a rank has part of the tokens."""
        paired, couples = (loss.paired, loss.couples) if loss else (False, False)
        packed, step = self._pack(samples, pairs=paired), 2 if paired else 1
        context, device = self.titan.context, self.titan.device
        mine = [shard_microbatch(micro, context, whole=couples, step=step) for micro in packed]
        micros = [micro.to(device) for micro in mine]
        return (micros if context.size == 1 else packed), micros

    def _run_passes(
        self,
        loss: LossFunction,
        samples: Sequence[Sample],
        counts: dict[str, float] | None = None,
    ) -> tuple[dict[str, Tensor], list[Microbatch], str]:
        """Compute this rank's part of the loss and its reports, and gradients if they are
        enabled. `counts`, if given, are the denominators instead of the counts of `samples`."""
        counted, micros = self._pack_microbatches(loss, samples)
        totals = self._totals(loss, counted)
        if counts is not None:
            totals = {name: torch.tensor(counts[name]) for name in totals}
        sums: dict[str, Tensor] = {}
        kernel = ""

        def of(micro: Microbatch, *args: Any) -> Tensor:
            nonlocal kernel
            value, metrics, kernel = self._loss(loss, micro, totals, *args)
            for name, part in {"loss": value, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + part.detach()
            return value

        self._run(micros, of)
        if self.titan.pipeline is not None:
            told = {name: value.cpu() for name, value in sums.items()}
            sums, kernel = self.titan.pipeline.broadcast_from_last((told, kernel))
        return sums, micros, kernel

    def _evaluate(self, samples: Sequence[Sample], loss_name: str) -> dict[str, float]:
        with torch.no_grad():
            sums, *_ = self._run_passes(self.losses[loss_name], samples)
            return self._reduce(sums)

    def _totals(self, loss: LossFunction, micros: Sequence[Microbatch]) -> dict[str, Tensor]:
        """Sum the loss's counts over the whole update: all microbatches of all ranks."""
        sums: dict[str, Tensor] = {}
        for micro in micros:
            counts = loss.totals(labels=micro.labels, seq_id=micro.seq_id, **_inputs(loss, micro))
            for name, value in counts.items():
                sums[name] = sums.get(name, 0.0) + value
        # all ranks of a context-parallel group count the same samples
        same = self.titan.context.size
        return {name: torch.tensor(value / same) for name, value in self._reduce(sums).items()}

    def _loss(
        self,
        loss: LossFunction,
        micro: Microbatch,
        totals: dict[str, Tensor],
        hidden: Tensor,
        weight: Tensor,
        shared: dict[str, Any],
    ) -> tuple[Tensor, dict[str, Tensor], str]:
        rows = rows_of(hidden, micro)
        given = {"seq_id": micro.seq_id, "totals": totals, **_inputs(loss, micro)}
        if loss.reads_value:
            given["value"] = self.titan.values(rows)
        if self._compared is not None:
            self._compared.append(first_batch.compare(
                loss, rows, weight, labels=micro.labels, temperature=self.service.temperature,
                shared=shared, given=given,
            ))  # fmt: skip
        if loss.of_values_alone:
            out = loss.of_values(**given)
        else:
            out = loss.linear(
                hidden=rows, weight=weight, labels=micro.labels,
                temperature=self.service.temperature, **shared, **given,
            )  # fmt: skip
        if self._trace is not None and out.logprob is not None:
            self._trace[self._term].append((micro, out.logprob))
        return out.loss, out.metrics, out.kernel

    def _reduce(self, totals: dict[str, Tensor]) -> dict[str, float]:
        """Sum partial metrics over the ranks of the batch group."""
        names = sorted(totals)
        stacked = torch.stack([totals[n].to(torch.float64).cpu() for n in names])
        if self.titan.dp_size * self.titan.context.size > 1:
            stacked = stacked.to(self.titan.device)
            dist.all_reduce(stacked, group=self._dp_group())
        return dict(zip(names, stacked.tolist(), strict=True))

    def _publish(self) -> Manifest | None:
        probe = self._probe() if self._publications in PROBED else None
        self._publications += 1
        alone = nodes.sends_adapter(self.job, self.name)
        state = self.titan.adapter_state() if alone else self.titan.hf_state()
        manifest = self.sender.publish(state, self.version, probe)
        if alone and self._proves:
            self._base = self._base or self.sender.digests(self.titan.base_state())
            manifest = replace(manifest, base=self._base)
        if not self._moved:  # there was no update since the last publication
            manifest = replace(manifest, changed=None)
        self._moved = False
        return manifest if self.rank == 0 else None

    def _probe(self) -> Probe:
        """Compute log-probs of a fixed text at temperature 1, for the generators to compare
        with."""
        sample = self._fixed_sample()
        (logprobs,) = self._logprobs([sample], temperature=1.0)
        return Probe(
            token_ids=tuple(sample.token_ids), logprobs=tuple(logprobs), dtype=self.service.dtype
        )

    def _save(self, step: int) -> None:
        optimizers.complete_moments(self.optimizers)
        self._saved = self.saver.save(step)

    def _restore(self, step: int) -> int:
        assert self.service.optimizer is not None
        self.checkpointer.load(step)
        optimizers.set_optimizer(self.optimizers, self.schedulers, self.service.optimizer)
        self.optimizers.zero_grad()
        self._held, self._moved = None, True
        return self.version

    def _export(self, target: Path, dtype: str) -> str | None:
        kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        state: dict[str, Tensor] = {}
        first = self.rank % (self.world // self.service.parallel.pp) == 0
        for name, gathered in self.titan.export_tensors(kind):
            if first:
                state[name] = gathered.contiguous().cpu()
        head = {name: gather_tensor(value, kind).cpu()
                for name, value in value_head.state(self.titan.model).items()}  # fmt: skip
        if self.titan.pipeline is not None:
            state, head = (self.titan.pipeline.collect_on_first(part) for part in (state, head))
        if self.rank != 0:
            return None
        write_folder(state, target, self.folder, dtype)
        value_head.save(head, target)
        return str(target)

    def _close(self) -> None:
        self.sender.close()
        self.checkpointer.close()


def _named(found: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Prefix the keys of a loss and its reports with the name of the loss. Used for a step with
    several losses."""
    return {f"{name}.{key}": value for key, value in found.items()}


def _inputs(loss: LossFunction, micro: Microbatch) -> dict[str, Any]:
    """Return the fields of the batch that this loss reads."""
    return {name: micro.inputs[name] for name in loss.input_names if name in micro.inputs}
