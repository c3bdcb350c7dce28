"""vLLM's scheduler with a fast path for steps that only decode.

    EngineCore.step --> schedule           requests --> blocks, SchedulerOutput
                   `--> update_from_output tokens, log-probs --> requests, `RequestSamples`s

For each token of each request, vLLM's code handles encoder inputs, draft tokens, grammars and
connectors, and makes an output object and an object for its text. Sampling for training needs none
of these.
A request registered with `follow` yields one sampled token per step with its log-prob. If all
requests are followed, and each has one token to compute, both calls take the fast path. In every
other step (prompts, other requests, no free blocks) vLLM's code runs. Both paths change requests
and blocks in the same way. Samples of followed requests are kept here until they finish and never
pass through vLLM's output processor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.sched.utils import check_stop, remove_all
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from forgedsl_runtime.services.vllm.upstream.routes import PendingRoutes, RouteRecorder


SAMPLED = {RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED}
"""states of a request in which the scheduler itself found its last token"""


@dataclass(slots=True)
class RequestSamples:
    """Samples of a request, and why it ended."""

    name: str
    request: Request
    ends: frozenset[int]
    """tokens that end it"""
    most_tokens: int
    """it ends when prompt and completion together have this many tokens"""
    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    routes: PendingRoutes | None = None

    @classmethod
    def of(cls, name: str, request: Request, longest: int) -> RequestSamples:
        """Return the empty samples of a request; `longest`: tokens of the model's context."""
        params = request.sampling_params
        assert params is not None
        ends = {params.eos_token_id, *(params.stop_token_ids or ())} - {None}
        most = min(request.num_prompt_tokens + request.max_tokens, longest)
        return cls(name, request, frozenset(ends), most, request._output_token_ids)


class FastDecodeScheduler(Scheduler):
    """vLLM's scheduler for engines whose steps do not overlap."""

    overlaps = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.followed: dict[str, RequestSamples] = {}
        """samples of followed, unfinished requests, by vLLM's id"""
        self.num_short = 0
        """number of steps scheduled on the fast path"""
        self.recorder: RouteRecorder | None = None
        self.routes: dict[str, PendingRoutes] = {}
        """routes of finished requests until they are handed out, by vLLM's id"""
        self._names: dict[str, str] = {}
        self._ended: list[RequestSamples] = []
        self._discards = False
        self._is_plain = self._has_nothing_special()
        self._blocks = self.kv_cache_manager.coordinator.single_type_managers[0]

    def _has_nothing_special(self) -> bool:
        """True if no configured feature of this engine needs to see each step."""
        managers = self.kv_cache_manager.coordinator.single_type_managers
        hooks = (
            self.connector, self.ec_connector, self.aux_output_connector, self.perf_metrics,
            self.finished_req_ids_dict, self.dynamic_sd_lookup,
        )  # fmt: skip
        flags = (
            self.num_spec_tokens, self.num_lookahead_tokens, self.use_pp, self.is_encoder_decoder,
            self.enable_kv_cache_events, self.return_sampling_mask, self.defer_block_free,
            self.log_stats, self.need_mamba_block_aligned_split, self.needs_kv_cache_zeroing,
        )  # fmt: skip
        return (
            all(hook is None for hook in hooks)
            and not any(flags)
            and self.policy == SchedulingPolicy.FCFS
            and self.num_sampled_tokens_per_step == 1
            and self.dcp_world_size == 1
            and len(managers) == 1
            and type(managers[0]) is FullAttentionManager
            and managers[0].block_size == self.hash_block_size
        )

    # ---- what the engine asks

    def follow(self, request_id: str, name: str) -> None:
        """Keep the samples of a request that is about to be added, under `name`. The request must
        ask for the log-prob of each sampled token, and for no other output before it finishes. It
        must have no stop strings."""
        self._names[request_id] = name

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        name = self._names.pop(request.request_id, None)
        if name is not None:
            samples = RequestSamples.of(name, request, self.max_model_len)
            self.followed[request.request_id] = samples

    def take_finished(self) -> list[RequestSamples]:
        """Return the followed requests that have finished since the last call."""
        ended, self._ended = self._ended, []
        return ended

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Keep no routes of requests that are aborted meanwhile. Otherwise an aborted request is
        one whose text has a stop string: vLLM finds it outside the scheduler."""
        self._discards = True
        try:
            yield
        finally:
            self._discards = False

    @property
    def _follows_all(self) -> bool:
        return self._is_plain and len(self.followed) == len(self.requests)

    def recompute(self, adapter: int, salt: str) -> None:
        """Drop the KV caches of all requests with this adapter. They are computed again, under a
        new salt, so that they find no block of the older adapter in the prefix cache. Requests with
        other adapters, or none, keep theirs."""
        now = time.monotonic()
        dropped = [request for request in self.running if _has(request, adapter)]
        self.running = [request for request in self.running if not _has(request, adapter)]
        for request in reversed(dropped):  # they wait in the order in which they ran
            self._preempt_request(request, now, drop_stale_output=True)
            self.prev_step_scheduled_req_ids.discard(request.request_id)
        for request in self.requests.values():
            if _has(request, adapter):
                request.cache_salt = salt
                request.block_hashes.clear()
                request.update_block_hashes()

    # ---- scheduling

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        chosen = None if throttle_prefills else self._decoding()
        if chosen is None:
            return super().schedule(throttle_prefills)
        self.num_short += 1
        return self._schedule_short(chosen)

    def _decoding(self) -> list[Request] | None:
        """Return the requests to give one token each; None if the step may need vLLM's code."""
        running = self.running
        nobody_enters = len(running) >= self.max_num_active_reqs or not (
            self.waiting or self.kv_holding_waiting
        )
        if not (
            running
            and nobody_enters
            and self._follows_all
            and self._pause_state == PauseState.UNPAUSED
            and len(running) <= self.max_num_scheduled_tokens
            and len(running) <= self.scheduler_config.max_num_batched_tokens
        ):
            return None
        chosen, fresh, size, room = [], 0, self._blocks.block_size, self.max_model_len - 1
        before = None if self.use_v2_model_runner else self.prev_step_scheduled_req_ids
        for request in running:
            computed, placed = request.num_computed_tokens, request.num_output_placeholders
            if placed and computed + 2 - placed >= request.num_prompt_tokens + request.max_tokens:
                continue  # its last token is being computed
            left = len(request._all_token_ids) + placed - computed
            if left == 0 or computed >= room:
                continue
            if left != 1 or request.is_prefill_chunk:
                return None
            if before is not None and request.request_id not in before:
                return None
            if self.current_step + 1 < request.next_decode_eligible_step:
                return None
            fresh += computed % size == 0
            chosen.append(request)
        return chosen if fresh <= self.kv_cache_manager.block_pool.get_num_free_blocks() else None

    def _schedule_short(self, chosen: list[Request]) -> SchedulerOutput:
        self.current_step += 1
        size, caches = self._blocks.block_size, self.kv_cache_manager.enable_caching
        ids = [request.request_id for request in chosen]
        computed_tokens = [request.num_computed_tokens for request in chosen]
        output_tokens = [
            len(request._output_token_ids) + request.num_output_placeholders for request in chosen
        ]
        new_block_ids: list[tuple[list[int], ...] | None] = [None] * len(chosen)
        overlaps = self.overlaps
        eligible = self.current_step + 1 if overlaps and self.use_v2_model_runner else 0
        for place, request in enumerate(chosen):
            computed = computed_tokens[place]
            if computed % size == 0 or (
                caches and min(computed + 1, len(request._all_token_ids)) % size == 0
            ):  # it needs a new block, or fills one
                slots = self.kv_cache_manager.allocate_slots(request, 1)
                assert slots is not None, "blocks were counted before"
                new_block_ids[place] = slots.get_block_ids(allow_none=True)
            request.num_computed_tokens = computed + 1
            request.num_in_flight_tokens += 1
            if overlaps:
                request.num_output_placeholders += 1
                request.next_decode_eligible_step = eligible
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids = set(ids)
        self.kv_cache_manager.take_new_block_ids()
        cached = CachedRequestData(
            req_ids=ids, resumed_req_ids=set(), new_token_ids=[], all_token_ids={},
            new_block_ids=new_block_ids, num_computed_tokens=computed_tokens,
            num_output_tokens=output_tokens,
        )  # fmt: skip
        return self._output_of(cached)

    def _output_of(self, cached: CachedRequestData) -> SchedulerOutput:
        output = SchedulerOutput(
            scheduled_new_reqs=[], scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict.fromkeys(cached.req_ids, 1),
            total_num_scheduled_tokens=len(cached.req_ids),
            scheduled_spec_decode_tokens={}, scheduled_encoder_inputs={},
            preempted_req_ids=self.reset_preempted_req_ids,
            finished_req_ids=self.finished_req_ids,
            free_encoder_mm_hashes=self.encoder_cache_manager.get_freed_mm_hashes(),
            ec_manager_metadata=self.encoder_cache_manager.get_manager_metadata(),
        )  # fmt: skip
        self.finished_req_ids, self.reset_preempted_req_ids = set(), set()
        return output

    # ---- what was sampled

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if self._follows_all and self._is_sampling_alone(model_runner_output):
            self._update_short(scheduler_output.num_scheduled_tokens, model_runner_output)
            return {}
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for given in outputs.values():
            given.outputs = [output for output in given.outputs if not self._kept(output)]
        return outputs

    def _kept(self, output: Any) -> bool:
        """Take vLLM's output for a followed request; False if the request is not followed."""
        samples = self.followed.get(output.request_id)
        if samples is None:
            return False
        if output.new_logprobs is not None:
            samples.logprobs += output.new_logprobs.logprobs[:, 0].tolist()
        if output.finish_reason is not None:
            self._end(output.request_id, output.finish_reason)
        return True

    def _end(self, request_id: str, reason: FinishReason | None) -> None:
        samples = self.followed.pop(request_id)
        samples.reason = reason
        samples.routes = self.routes.pop(request_id, None)
        self._ended.append(samples)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        """Free the blocks of a request that ended; read its routes first."""
        if self.recorder is not None and self._has_samples(request):
            (blocks,) = self.kv_cache_manager.get_block_ids(request.request_id)
            self.routes[request.request_id] = self.recorder.read(
                blocks, self._blocks.block_size, request.num_tokens - 1
            )
        return super()._free_request(request, delay_free_blocks)

    def _has_samples(self, request: Request) -> bool:
        """True if a request that ended has its last token."""
        if request.status is RequestStatus.FINISHED_ABORTED:
            return not self._discards
        return request.status in SAMPLED

    def _is_sampling_alone(self, output: ModelRunnerOutput) -> bool:
        """True if a step gave sampled tokens with their log-probs and nothing else."""
        return (
            bool(output.sampled_token_ids)
            and output.logprobs is not None
            and output.logprobs.cu_num_generated_tokens is None
            and output.kv_connector_output is None
            and output.ec_connector_output is None
            and output.pooler_output is None
            and not output.num_nans_in_logits
            and not any(value is not None for value in output.prompt_logprobs_dict.values())
            and not output.prompt_token_id_logprobs_dict
            and not self.encoder_cache_mismatch_reqs
            and not self.grammar_compile_error_reqs
        )

    def _update_short(self, scheduled: dict[str, int], output: ModelRunnerOutput) -> None:
        assert output.logprobs is not None
        logprobs = output.logprobs.logprobs[:, 0].tolist()
        sampled, index = output.sampled_token_ids, output.req_id_to_index
        size, caches = self._blocks.block_size, self.kv_cache_manager.enable_caching
        followed, overlaps, running = self.followed, self.overlaps, RequestStatus.RUNNING
        stopped: list[tuple[Request, bool]] = []
        for request_id, num_tokens in scheduled.items():
            samples = followed.get(request_id)
            if samples is None:
                continue  # it ended in the preceding step
            request = samples.request
            request.num_in_flight_tokens -= num_tokens
            is_stale = request.num_stale_output_tokens > 0
            if is_stale:  # sampled before it was preempted
                request.num_stale_output_tokens -= num_tokens
                if request.drop_stale_output:
                    continue
            at = index[request_id]
            if not sampled[at]:
                continue  # in the middle of a prompt
            token = sampled[at][0]
            tokens = request._all_token_ids
            tokens.append(token)
            samples.token_ids.append(token)
            samples.logprobs.append(logprobs[at])
            count = len(tokens)
            if count % size == 0:
                request.update_block_hashes()
            was_running = request.status is running
            if (count >= samples.most_tokens or token in samples.ends) and check_stop(
                request, self.max_model_len
            ):
                stopped.append((request, was_running))
            if overlaps:
                if not is_stale:
                    request.num_output_placeholders -= 1
                if was_running and caches:
                    done = request.num_computed_tokens - request.num_output_placeholders
                    if done % size == 0:
                        self.kv_cache_manager.cache_blocks(request, done)
        if stopped:
            self._stop(stopped)

    def _stop(self, stopped: list[tuple[Request, bool]]) -> None:
        for request, _ in stopped:
            self._free_request(request)
            self._end(request.request_id, request.get_finished_reason())
        self.running = remove_all(self.running, {r for r, was_running in stopped if was_running})
        waiting = {request for request, was_running in stopped if not was_running}
        if waiting:
            self.waiting.remove_requests(waiting)
            self.kv_holding_waiting.remove_requests(waiting)
            self.deferred_waiting.difference_update(waiting)


def _has(request: Request, adapter: int) -> bool:
    return request.lora_request is not None and request.lora_request.lora_int_id == adapter


class FastDecodeAsyncScheduler(FastDecodeScheduler, AsyncScheduler):
    """vLLM's scheduler for engines that schedule a step while the one before is computed."""

    overlaps = True
