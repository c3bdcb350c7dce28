"""Adapter of vLLM: drives its engine in this process.

`Engine` drives an in-process `LLMEngine` step by step: requests may be added and weights swapped
between any two steps, which is continuous batching with hot weight updates. It is used from one
thread (the generator's engine loop).

The engine runs in the actor's process (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that the actor itself
decides between which steps weights are loaded. `AsyncLLM` always starts a process for the engine,
so it is not used.

A tensor-parallel replica is one `Engine` per rank, all in lock-step: every rank schedules and
samples the same requests (seeds and gathered logits are the same), and `broadcast_decisions` sends
rank 0's decisions to all ranks before each step.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.services.vllm.memory import batched_tokens
from forgedsl.sizes.memory import MAX_RUNNING
from forgedsl.tool_calls import FORMS, chosen
from forgedsl.vllm_parsers import FORM
from forgedsl_runtime.proofs.publication import Arrival, Digest, Held, arrival
from forgedsl_runtime.services.vllm.upstream import adapter, loading
from forgedsl_runtime.services.vllm.upstream.loading import silence_reload_warnings
from forgedsl_runtime.services.vllm.upstream.start import fast_start, graph_sizes, preload
from forgedsl_runtime.services.vllm.upstream.tenants import SALT, Tenants
from forgedsl_runtime.services.vllm.upstream.texts import decoder

if TYPE_CHECKING:
    from forgedsl_runtime.services.vllm.upstream.held import HeldWeights
    from forgedsl_runtime.services.vllm.upstream.routes import PendingRoutes
    from forgedsl_runtime.services.vllm.upstream.scheduling import (
        FastDecodeScheduler,
        RequestSamples,
    )

T = TypeVar("T")

ENDS = ("eos", "bos", "pad", "unk")
"""special tokens to leave out of a text that a parser of vLLM reads; the parser may need any other
special token"""
FP8 = "fp8_per_block"
"""vLLM's quantization of f32, bf16 or f16 weights to fp8 while it loads them: blocks of 128 x 128,
for which CPUs have kernels too"""
BY_LOADERS = 16
"""every sixteenth load goes through vLLM's loaders, also if places of tensors are proved: tensors
whose elements were all equal (norms, biases) prove little until they are trained"""
INDUCTOR = {"combo_kernels": True, "benchmark_combo_kernel": False}
"""Inductor's settings: vLLM would time each combined kernel against its parts while it compiles"""
WORKER = "forgedsl_runtime.services.vllm.upstream.worker.EngineWorker"
RECORDING_WORKER = "forgedsl_runtime.services.vllm.upstream.routes.RecordingWorker"


@dataclass(slots=True, kw_only=True)
class Finished:
    """A completion: tokens, and the sampler's log-prob of each. `text` is set if the request had
    stop strings; otherwise `Engine.text` decodes it, on any thread."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    text: str | None
    truncated: bool
    grades: tuple[float, ...] = ()
    routes: PendingRoutes | None = None
    """experts of each token but the last, prompt included, if the engine records them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRank:
    """Rank of an engine in its replica, and the file for the rendezvous of the ranks. From its
    path vLLM derives the name of the shared memory for reductions on CPUs."""

    rank: int
    ranks: int
    rendezvous_file: Path


class Engine:
    """An in-process vLLM engine for one model, or one rank of it. With `random`, or if `folder` has
    no weights, it starts from random weights. With `record`, it keeps digests of what it loads.
    `tenants` are other services that it serves, each with the folder of its adapter (None: the
    base)."""

    _places_are_proved = False
    """True once digests have shown where each published tensor belongs; then tensors are copied
    there, without vLLM's loaders"""

    def __init__(
        self, service: spec.VllmService, model: spec.Model, folder: Path, seed: int,
        rank: EngineRank, *, random: bool = False, record: bool = False,
        tenants: Mapping[str, Path | None] | None = None,
    ):  # fmt: skip
        self.seconds = {"imports": preload(service.mesh.device)}
        """by startup phase: its seconds"""
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        self._prompt, self._params = TokensPrompt, SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._ranks, self._rank, self._tool_calls = rank.ranks, rank.rank, model.tool_calls
        self._watched: set[str] = set()
        """requests with stop strings; vLLM searches their text"""
        self._graded: dict[str, tuple[int, ...]] = {}
        self._inner_ids: dict[str, str] = {}
        """vLLM's ids of requests that are watched or graded"""
        self._salt = 0
        """number of weight loads; part of the prefix cache's salt"""
        self._on_cpu = on_cpu = service.mesh.device == "cpu"
        adapted = service.adapter_rank is not None
        self.random = (random and not adapted) or not any(folder.glob("*.safetensors"))
        self._tenants = own = Tenants(tenants or {})
        arguments = _arguments(service, model, folder, seed, rank, random=self.random, tenants=own)
        if not on_cpu:
            _install_kernels()
        self.base: list[Held] = []
        """digests of the weights that were loaded: the base of an adapter, or all with `record`"""
        base = adapter.recording_base(self.base, wanted=adapted or record)
        try:
            with contextlib.chdir(folder.parent), fast_start(service.sampling, self.seconds), base:
                config = _configured(arguments)
                self._engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        except TypeError as error:
            text = f"vLLM does not know an argument of `engine.extra`: {error}"
            raise LaunchError(text) from error
        core: Any = self._engine.engine_core
        self._core, self._scheduler = core, cast("FastDecodeScheduler", core.engine_core.scheduler)
        if service.record_routes:
            (self._scheduler.recorder,) = self._engine.collective_rpc("route_recorder")
        silence_reload_warnings(self._engine.model_config.hf_text_config.tie_word_embeddings)
        if self._ranks > 1 and self._rank == 0:
            _unlink_shared_memory()
        self._in_place = not on_cpu and all(self._engine.apply_model(loading.keeps_weights))
        self._adapter = adapter.request() if adapted else None
        self._held = self._holding(service.adapter_rank)
        self._tenants.begin(self._engine)
        self._check_parser()

    @property
    def class_name(self) -> str:
        """Full name of vLLM's engine class."""
        made = type(self._engine)
        return f"{made.__module__}.{made.__qualname__}"

    def _holding(self, rank: int | None) -> HeldWeights | adapter.HeldAdapter:
        """Return the reader of the weights that the engine holds; with a `rank`, of its adapter."""
        from forgedsl_runtime.services.vllm.upstream.held import HeldWeights

        found: Any
        if rank is None:
            (found,) = self._engine.apply_model(partial(HeldWeights, in_place=self._in_place))
        else:
            self._engine.apply_model(partial(adapter.begin, rank=rank))
            (found,) = self._engine.apply_model(partial(adapter.HeldAdapter, rank=rank))
        return cast("HeldWeights | adapter.HeldAdapter", found)

    def tenant_faults(self) -> dict[str, list[str]]:
        """Return, for each tenant with an adapter, how what the engine holds differs from its
        folder: nothing, or a sentence for each tensor (a collective)."""
        return self._tenants.faults(self.gather_lists)

    def tenant_tensors(self, tenant: str) -> int:
        """Return the number of tensors of a tenant's adapter."""
        return self._tenants.num_tensors(tenant)

    def _check_parser(self) -> None:
        """Load vLLM's parser of tool calls, if the model names one. Otherwise an error would show
        only at the first answer of an episode.

        Raises:
            RunError: the parser cannot be used.
        """
        if self._tool_calls is not None and self._tool_calls.startswith(FORM):
            from forgedsl_runtime.upstream.tool_parsers import ToolParser

            ToolParser(self._tool_calls.removeprefix(FORM), self._engine.get_tokenizer())

    @cached_property
    def _left_out(self) -> dict[int, str]:
        """Special tokens to remove from decoded texts, by id. Special tokens that mark tool calls
        stay. Empty if there are no such marks: then the tokenizer itself removes all special
        tokens."""
        tokenizer: Any = self._engine.get_tokenizer()
        special = {
            ident: str(token)
            for ident, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        name = chosen(self._tool_calls, getattr(tokenizer, "chat_template", None))
        if name.startswith(FORM):  # only the parser knows which tokens mark a call
            ends = {getattr(tokenizer, f"{each}_token", None) for each in ENDS}
            left = {ident: text for ident, text in special.items() if text in ends}
        else:
            marks = FORMS[name].marks
            left = {ident: text for ident, text in special.items() if text not in marks}
        return left if len(left) < len(special) else {}

    def enter_thread(self) -> None:
        """Set the current device of a thread before it uses the engine: the device is per
        thread."""
        if not self._on_cpu:
            import torch

            torch.accelerator.set_device_index(self._rank)

    @property
    def num_running(self) -> int:
        """Return the number of unfinished requests in the engine."""
        return self._engine.get_num_unfinished_requests() + len(self._scheduler.followed)

    def broadcast_decisions(self, decisions: T) -> T:
        """Return rank 0's decisions on all ranks of the replica; arguments of other ranks are
        ignored.

        Raises:
            RuntimeError: the ranks no longer have the same requests.
        """
        if self._ranks == 1:
            return decisions
        from vllm.distributed import get_tp_group

        mine = self.num_running
        theirs: int
        agreed: T
        theirs, agreed = get_tp_group().broadcast_object((mine, decisions))
        if theirs != mine:
            raise RuntimeError(
                f"engine ranks diverged: rank 0 has {theirs} requests, this rank has {mine}"
            )
        return agreed

    @property
    def max_length(self) -> int:
        """Longest prompt and completion together, in tokens."""
        return int(self._engine.model_config.max_model_len)

    def add(
        self,
        request_id: str,
        token_ids: list[int],
        sampling: spec.Sampling,
        seed: int,
        grades: tuple[int, ...] = (),
        tenant: str = "",
    ) -> None:
        """Queue one request, of the policy or of a tenant. `grades` are token ids: the log-prob of
        each as the first token of the completion is returned too."""
        params = self._params(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or 0,
            min_p=sampling.min_p,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop=list(sampling.stop),
            seed=seed if sampling.temperature > 0 else None,
            logprobs=len(grades),
            logprob_token_ids=list(grades) or None,
            flat_logprobs=True,
            # Only stop strings need text; decoding each token costs more than sampling it.
            detokenize=bool(sampling.stop),
            skip_special_tokens=not self._left_out,
            output_kind=self._final_only,
            skip_clone=True,  # each request has parameters of its own
        )
        salt, added = (SALT, self._tenants.adapter(tenant)) if tenant else (
            f"v{self._salt}", self._adapter
        )  # fmt: skip
        prompt = self._prompt(prompt_token_ids=token_ids, cache_salt=salt)
        if sampling.stop:
            self._watched.add(request_id)
        if grades:
            self._graded[request_id] = grades
        if sampling.stop or grades:
            self._inner_ids[request_id] = self._engine.add_request(
                request_id, prompt, params, lora_request=added
            )
            return
        inputs, tasks = self._engine.input_processor, self._engine.get_supported_tasks()
        request = inputs.process_inputs(
            request_id, prompt, params, supported_tasks=tasks, lora_request=added
        )
        inputs.assign_request_id(request)
        self._scheduler.follow(request.request_id, request_id)
        self._core.add_request(request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End unfinished requests without an output."""
        ids = {*request_ids}
        followed = self._scheduler.followed
        keys = [key for key, samples in followed.items() if samples.name in ids]
        for key in keys:
            ids.discard(followed.pop(key).name)
        with self._scheduler.discarding():
            self._core.abort_requests(keys)
            self._engine.abort_request(sorted(ids))
        for ident in ids:
            self._watched.discard(ident)
            self._graded.pop(ident, None)
            self._inner_ids.pop(ident, None)

    def texts(self, done: Sequence[Finished]) -> list[str]:
        """Return the texts of completions, without the tokens that ended them."""
        decoded = iter(self._decode([self._shown(one) for one in done if not _has_text(one)]))
        return [self._cleaned(one.text or "") if _has_text(one) else next(decoded) for one in done]

    def _shown(self, done: Finished) -> list[int]:
        """Return the tokens to decode."""
        tokens = done.token_ids[: len(done.token_ids) - (not done.truncated)]
        if self._left_out:
            tokens = [token for token in tokens if token not in self._left_out]
        return tokens

    def _cleaned(self, text: str) -> str:
        for token in self._left_out.values():
            text = text.replace(token, "")
        return text

    @cached_property
    def _decode(self) -> Callable[[list[list[int]]], list[str]]:
        """Decode several lists of tokens."""
        return decoder(self._engine.get_tokenizer(), skip_special_tokens=not self._left_out)

    def step(self) -> list[Finished]:
        """Run one engine step; return the requests that finished in it."""
        watched = [self._finished(output) for output in self._engine.step() if output.finished]
        return watched + [_as_finished(samples) for samples in self._scheduler.take_finished()]

    def _finished(self, output: Any) -> Finished:
        """Convert one vLLM RequestOutput."""
        completion = output.outputs[0]
        flat = completion.logprobs  # the sampled token comes first at each position
        watched = output.request_id in self._watched
        self._watched.discard(output.request_id)
        grades = self._graded.pop(output.request_id, ())
        first = dict(zip(flat.token_ids, flat.logprobs, strict=True)) if grades else {}
        inner = self._inner_ids.pop(output.request_id, "")
        return Finished(
            request_id=output.request_id,
            token_ids=list(completion.token_ids),
            logprobs=[
                math.nan if flat.logprobs[at] is None else flat.logprobs[at]
                for at in flat.start_indices
            ],
            text=completion.text if watched else None,
            truncated=completion.finish_reason == "length",
            grades=tuple(first[token] for token in grades),
            routes=self._scheduler.routes.pop(inner, None),
        )

    def score(self, request_id: str, token_ids: list[int]) -> tuple[list[float], list[Finished]]:
        """Return the log-probs of `token_ids[1:]` at temperature 1, and the requests that finished
        meanwhile."""
        params = self._params(
            max_tokens=1,
            temperature=0.0,
            prompt_logprobs=0,
            skip_reading_prefix_cache=True,
            output_kind=self._final_only,
            skip_clone=True,  # each request has parameters of its own
        )
        prompt = self._prompt(prompt_token_ids=token_ids)
        inner = self._engine.add_request(request_id, prompt, params, lora_request=self._adapter)
        others: list[Finished] = []
        while True:
            output: Any
            found = self._engine.step()
            others += [_as_finished(samples) for samples in self._scheduler.take_finished()]
            for output in found:
                if output.request_id != request_id:
                    others += [self._finished(output)] if output.finished else []
                elif output.finished:
                    self._scheduler.routes.pop(inner, None)
                    steps = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
                    return [step[token].logprob for token, step in steps], others

    def progress(self, *, keep: bool) -> dict[str, int]:
        """Return how many tokens each request has so far; call before new weights are loaded. With
        `keep`, tokens of the step in flight count; without it, that step is dropped."""
        named = {samples.name: key for key, samples in self._scheduler.followed.items()}
        for name, keys in self._engine.output_processor.external_req_ids.items():
            named[name] = keys[0]
        found = {name: self._scheduler.requests[key] for name, key in named.items()}
        coming = {name: r.num_output_placeholders for name, r in found.items()}
        return {
            name: request.num_output_tokens + (coming[name] if keep else 0)
            for name, request in found.items()
        }

    def load_weights(
        self, weights: Iterable[tuple[str, Any]], *, keep: bool, prove: bool = False
    ) -> list[Held]:
        """Load new weights (Hugging Face names), or a new adapter (PEFT's names), in place, between
        two steps. With `keep`, running requests keep their KV caches; otherwise vLLM recomputes
        these under the new weights. Later requests never reuse cached blocks of older weights,
        because they have another `cache_salt`. Requests of tenants go on as if nothing had
        happened. With `prove`, return digests of the new weights on this rank."""
        self._salt += 1
        if prove:
            self._held.begin()
        if self._adapter is not None:
            self._engine.apply_model(lambda model: adapter.swap(model, weights))
        elif self._in_place:
            held = cast("HeldWeights", self._held)
            by_place = self._places_are_proved and self._salt % BY_LOADERS
            left = held.write(weights) if by_place else weights
            self._engine.apply_model(lambda model: loading.load(model, left))
        else:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self._on_cpu:
            import torch

            torch.accelerator.synchronize()  # all copies are done: the sender may reuse its buffer
        elif self._adapter is None:
            self._engine.apply_model(loading.repack)
        if self._tenants and not keep:
            self._scheduler.recompute(adapter.POLICY, f"v{self._salt}")
        elif not keep:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        return self._held.take() if prove else []

    def compare(self, published: Mapping[str, Digest], held: list[Held]) -> Arrival:
        """Compare published weights with those that `load_weights` has found on this rank (a
        collective call)."""
        found = arrival(published, self.gather_lists(held), self.weight_names)
        self._places_are_proved = not (found.faults or found.placeless)
        return found

    def gather_lists(self, mine: list[T]) -> list[T]:
        """Return the lists of all ranks of the replica as one; a collective call."""
        if self._ranks == 1:
            return mine
        from torch import distributed
        from vllm.distributed import get_tp_group

        group = get_tp_group().cpu_group
        found: list[list[T]] = [[] for _ in range(self._ranks)]
        distributed.all_gather_object(found, mine, group=group)
        return [each for some in found for each in some]

    @cached_property
    def weight_names(self) -> set[str]:
        """Return the names of published tensors that this engine has a place for."""
        return self._held.names()


def _arguments(
    service: spec.VllmService, model: spec.Model, folder: Path, seed: int, engine_rank: EngineRank,
    *, random: bool = False, tenants: Tenants,
) -> dict[str, Any]:  # fmt: skip
    """Return vLLM's engine arguments; those of `engine.extra` come last. The model path is only
    the name of its folder: it is part of vLLM's compile cache key, and a full path, which differs
    in each run, would make every run compile again."""
    on_cpu = service.mesh.device == "cpu"
    arguments: dict[str, Any] = {
        "model": folder.name,
        "dtype": {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[service.dtype],
        "max_model_len": model.context,
        "seed": seed % 2**31,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": service.prefix_caching,
        "enforce_eager": not service.cuda_graphs or on_cpu,
        "max_num_seqs": service.max_running or MAX_RUNNING,
        "max_num_batched_tokens": batched_tokens(service.mesh.device, model.context or 0),
        "kv_cache_dtype": service.kv_dtype,
        "tensor_parallel_size": service.parallel.tp,
        "disable_log_stats": True,
        "load_format": "dummy" if random else "auto",
    }
    if service.weight_dtype == "fp8":
        arguments["quantization"] = FP8
    if service.adapter_rank is not None:
        arguments |= adapter.arguments(
            service.adapter_rank, tenants.ranks, empty=on_cpu and tenants.use_base
        )
    if service.record_routes:
        arguments["worker_cls"] = RECORDING_WORKER
    elif not on_cpu:
        arguments["worker_cls"] = WORKER
    if on_cpu:
        # Chunked prefill rewinds the request's random generator, which only CUDA generators
        # support.
        arguments["enable_chunked_prefill"] = False
    if engine_rank.ranks > 1:
        arguments["distributed_executor_backend"] = _executor_at(engine_rank)
    if service.gpu_memory is not None:
        arguments["gpu_memory_utilization"] = service.gpu_memory
    return {**arguments, **service.extra}


def _configured(arguments: dict[str, Any]) -> Any:
    """Return vLLM's configuration, with the scheduler that has a fast path for decoding."""
    if not arguments["enforce_eager"]:
        sizes = graph_sizes(arguments["max_num_seqs"])
        arguments.setdefault(
            "compilation_config",
            {"cudagraph_capture_sizes": sizes, "inductor_compile_config": INDUCTOR},
        )
    from vllm import EngineArgs

    from forgedsl_runtime.services.vllm.upstream.scheduling import (
        FastDecodeAsyncScheduler,
        FastDecodeScheduler,
    )

    config = EngineArgs(**arguments).create_engine_config()
    logging.getLogger("vllm.config.scheduler").addFilter(_drop_custom_scheduler_warning)
    scheduler = config.scheduler_config
    scheduler.scheduler_cls = (
        FastDecodeAsyncScheduler if scheduler.async_scheduling else FastDecodeScheduler
    )
    return config


def _install_kernels() -> None:
    """Replace parts of vLLM that are slower on GPUs: decode attention, drawing of tokens."""
    from forgedsl_runtime.services.vllm.upstream import attention_backend, sampling

    attention_backend.install()
    sampling.install()


def _drop_custom_scheduler_warning(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Using custom scheduler class")


def _has_text(done: Finished) -> bool:
    """Return whether vLLM decoded a completion; of one that was truncated it leaves out an
    incomplete last character."""
    return done.text is not None and not done.truncated


def _as_finished(samples: RequestSamples) -> Finished:
    return Finished(
        request_id=samples.name, token_ids=samples.token_ids, logprobs=samples.logprobs,
        text=None, truncated=str(samples.reason) == "length", routes=samples.routes,
    )  # fmt: skip


def _unlink_shared_memory() -> None:
    """Unlink the name of the ranks' shared memory. All ranks have mapped it, and a killed process
    would leave it behind."""
    from vllm.distributed import get_tp_group

    get_tp_group().mq_broadcaster.buffer.shared_memory.unlink()  # type: ignore[union-attr]


def _executor_at(engine_rank: EngineRank) -> type:
    """Return vLLM's executor for ranks that are started outside of vLLM and find each other through
    the rendezvous file. vLLM's default rendezvous `env://` gives no name for shared memory."""
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    class EngineRankExecutor(ExecutorWithExternalLauncher):
        def _distributed_args(self) -> tuple[str, int, int]:
            return f"file://{engine_rank.rendezvous_file}", engine_rank.rank, engine_rank.rank

    executor: type = EngineRankExecutor
    return executor
