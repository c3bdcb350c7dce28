"""Decode steps of the same requests, without what vLLM prepares anew in each step.

    step of vLLM's runner --remember--> its inputs, if all requests decode by a graph
    next step, same requests --execute--> inputs of the next tokens --> vLLM's graph of the model
                             `-sample--> tokens and log-probs; the state of the requests is updated

Between two graphs of the model, vLLM's runner gathers the requests on the host, copies their
numbers to the GPU, and launches some twenty small kernels. For 128 requests this takes the host
2.1 ms, but the GPU computes a whole step of a small model in 1.8 ms. If a step has the same
requests as the step before, nearly all that was prepared is still valid. Then one kernel writes the
inputs of the next tokens, and one updates the state of the requests. Where a request got a new
page, the page tables are gathered again. The state is one that vLLM may go on from. Tokens and
log-probs are the same bit for bit.

Groups of rows that share pages stay as they are: shared pages are full before the first decode
step, a request that decodes appends pages of its own, and vLLM does not replace pages of a running
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from vllm.config import CUDAGraphMode
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, LogprobsLists, ModelRunnerOutput
from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR
from vllm.v1.worker.gpu.model_runner import ExecuteModelState
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.sampler import Sampler

from forgedsl_runtime.services.vllm.upstream.attention import launch
from forgedsl_runtime.services.vllm.upstream.sampling import sampled_tokens

ROWS = 128
"""requests of a program"""
ABSENT = (
    "pcp_manager", "pp_handler", "lora_config", "speculative_config", "speculator",
    "adaptive_verification", "pooling_runner", "aux_output_connector", "batch_sharder",
    "ubatch_runner", "encoder_cache", "fast_prefill", "supports_mm_inputs", "uses_inputs_embeds",
    "use_aux_hidden_state_outputs", "is_encoder_decoder", "is_pooling_model", "check_ep_fault",
)  # fmt: skip
"""attributes of vLLM's runner for features that need to see each step: all must be None or false"""
ALONE = ("world_size", "data_parallel_size", "decode_context_parallel_size")
"""numbers of ranks: all must be 1. With several data-parallel ranks vLLM runs dummy steps, which
overwrite what is kept here"""
EVENTS = (
    "scheduled_new_reqs", "finished_req_ids", "preempted_req_ids", "scheduled_spec_decode_tokens",
    "scheduled_encoder_inputs", "free_encoder_mm_hashes", "has_structured_output_requests",
    "new_block_ids_to_zero", "kv_cache_block_copies",
)  # fmt: skip
"""what the scheduler may ask for in a step besides one token of each request"""
LOGPROBS = ("raw_logprobs", "processed_logprobs")
"""vLLM's modes that return log-probs; both are the same if nothing changes the logits"""


@triton.jit(do_not_specialize=["rows"])
def _next_inputs(  # type: ignore[no-untyped-def]
    requests, computed, last, table, stride, token_ids, positions, lengths, slots, rows,
    PAGE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the inputs of the next step for each row: its token, position, length and slot."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    request = tl.load(requests + row, mask=inside, other=0)
    position = tl.load(computed + request, mask=inside, other=0)
    token = tl.load(last + request, mask=inside, other=0)
    page = tl.load(table + row.to(tl.int64) * stride + position // PAGE, mask=inside, other=0)
    tl.store(token_ids + row, token.to(tl.int32), mask=inside)
    tl.store(positions + row, position.to(tl.int64), mask=inside)
    tl.store(lengths + row, position + 1, mask=inside)
    tl.store(slots + row, page.to(tl.int64) * PAGE + position % PAGE, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _record(  # type: ignore[no-untyped-def]
    requests, tokens, logprobs, computed, last, totals, texts, stride, found, rows,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Add the token of each row to its request. Write tokens, and the bits of log-probs, to the two
    rows of `found`. vLLM also counts the tokens of each request, for penalties. Requests whose
    tokens are drawn here have none, and the counts of the next request begin at zero."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    request = tl.load(requests + row, mask=inside, other=0)
    token = tl.load(tokens + row, mask=inside, other=0)
    logprob = tl.load(logprobs + row, mask=inside, other=0.0)
    total = tl.load(totals + request, mask=inside, other=0)
    before = tl.load(computed + request, mask=inside, other=0)
    tl.store(texts + request.to(tl.int64) * stride + total, token.to(tl.int32), mask=inside)
    tl.store(totals + request, total + 1, mask=inside)
    tl.store(computed + request, before + 1, mask=inside)
    tl.store(last + request, token, mask=inside)
    tl.store(found + row, token.to(tl.int32), mask=inside)
    tl.store(found + rows + row, logprob.to(tl.int32, bitcast=True), mask=inside)


def next_inputs(requests: torch.Tensor, states: Any, buffers: Any, tables: Any) -> None:
    """Write the inputs of a step in which each of the requests [B] (numbers in vLLM's state, int64)
    computes its last token. `states`, `buffers` and `tables` are vLLM's RequestState, InputBuffers
    and BlockTables; the page table of the batch is in `tables` already."""
    (table,), rows = tables.input_block_tables, requests.shape[0]
    launch(
        _next_inputs, (triton.cdiv(rows, ROWS),),
        requests, states.num_computed_tokens.gpu, states.last_sampled_tokens,
        table, table.stride(0), buffers.input_ids, buffers.positions, buffers.seq_lens,
        tables.slot_mappings, rows, PAGE=tables.block_sizes[0], ROWS=ROWS, num_warps=4,
    )  # fmt: skip


def record(
    requests: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor, states: Any
) -> torch.Tensor:
    """Add a token [B] to each request in vLLM's RequestState. Return tokens and bits of log-probs,
    int32 [2, B]."""
    rows = requests.shape[0]
    found = torch.empty((2, rows), dtype=torch.int32, device=tokens.device)
    texts = states.all_token_ids.gpu
    launch(
        _record, (triton.cdiv(rows, ROWS),),
        requests, tokens, logprobs, states.num_computed_tokens.gpu, states.last_sampled_tokens,
        states.total_len.gpu, texts, texts.stride(0), found, rows, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return found


def compile_ahead(
    requests: int, vocabulary: int, context: int, width: int, page: int, dtype: torch.dtype
) -> None:
    """Compile the kernels of a step, from tensors on the meta device.

    Args:
        requests: largest number of requests.
        vocabulary: logits of a row.
        context: tokens of the longest request.
        width: pages of a row of the page table.
        page: tokens of a page.
        dtype: dtype of the logits.
    """
    with torch.device("meta"):
        numbers = torch.empty(requests, dtype=torch.int64)
        counts = SimpleNamespace(gpu=torch.empty(requests, dtype=torch.int32))
        texts = SimpleNamespace(gpu=torch.empty((requests, context), dtype=torch.int32))
        states = SimpleNamespace(
            num_computed_tokens=counts, total_len=counts, all_token_ids=texts,
            last_sampled_tokens=numbers,
        )  # fmt: skip
        buffers = SimpleNamespace(input_ids=counts.gpu, positions=numbers, seq_lens=counts.gpu)
        tables = SimpleNamespace(
            input_block_tables=[torch.empty((requests, width), dtype=torch.int32)],
            slot_mappings=numbers[None], block_sizes=[page],
        )  # fmt: skip
        next_inputs(numbers, states, buffers, tables)
        logits = torch.empty((requests, vocabulary), dtype=dtype)
        temperatures = torch.empty(requests, dtype=torch.float32)
        drawn = sampled_tokens(logits, numbers, temperatures, numbers, numbers)
        record(numbers, *drawn, states)


@dataclass(frozen=True, slots=True)
class Batch:
    """A step of vLLM's runner in which all requests decoded."""

    ids: list[str]
    """requests in the order of the batch"""
    index: dict[str, int]
    inputs: Any
    """vLLM's InputBatch"""
    state: ExecuteModelState
    graph: Any
    """descriptor of the model's graph"""
    is_plain: bool
    """True if tokens are drawn from the logits as they are, and only their log-probs are wanted"""


class Drawn(AsyncModelRunnerOutput):
    """Tokens and log-probs on their way to the host."""

    def __init__(self, batch: Batch, found: torch.Tensor) -> None:
        self._batch = batch
        self._found = torch.empty(found.shape, dtype=found.dtype, pin_memory=found.is_cuda)
        self._found.copy_(found, non_blocking=True)
        self._copied: Any = None
        if found.is_cuda:
            # As in vLLM the host sleeps until then. To wait busily would hold the driver's lock.
            self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._copied.record()

    def get_output(self) -> ModelRunnerOutput:
        if self._copied is not None:
            self._copied.synchronize()
        tokens, bits = self._found.numpy()
        return ModelRunnerOutput(
            req_ids=self._batch.ids,
            req_id_to_index=self._batch.index,
            sampled_token_ids=tokens[:, None].tolist(),
            logprobs=LogprobsLists(
                tokens[:, None], bits.view(np.float32)[:, None], np.zeros_like(tokens)
            ),
            cudagraph_stats=self._batch.state.cudagraph_stats,
        )


class DecodeSteps:
    """Runs decode steps in place of vLLM's runner.

    Args:
        runner: vLLM's GPUModelRunner, of an engine with one rank.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._batch: Batch | None = None
        self.num_taken = 0
        """number of steps that were run here"""

    @classmethod
    def of(cls, runner: Any) -> DecodeSteps | None:
        """Return the decode steps of a runner; None if it has a feature that needs to see each step
        or layers whose attention is not ours."""
        return cls(runner) if _has_nothing_special(runner) else None

    def takes(self, output: SchedulerOutput) -> bool:
        """Return whether a step has the requests of the step before, each with one token, and
        nothing else to do."""
        batch = self._batch
        return (
            batch is not None
            and output.total_num_scheduled_tokens == len(batch.ids)
            and not any(getattr(output, name) for name in EVENTS)
            and list(output.num_scheduled_tokens) == batch.ids
        )

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> None:
        """Compute the hidden states of a step that `takes` accepts."""
        runner, batch = self._runner, self._batch
        assert batch is not None
        self.num_taken += 1
        runner.update_requests(output)
        requests, tables = batch.inputs.idx_mapping, runner.block_tables
        if any(output.scheduled_cached_reqs.new_block_ids):
            tables.apply_staged_writes()
            tables.gather_block_tables(
                requests, num_reqs_padded=batch.inputs.num_reqs_after_padding
            )
        next_inputs(requests, runner.req_states, runner.input_buffers, tables)
        batch.inputs.seq_lens_cpu_upper_bound.numpy()[: len(batch.ids)] += 1
        hidden = runner.cudagraph_manager.run_fullgraph(batch.graph)
        runner.execute_model_state = batch.state._replace(hidden_states=hidden)

    @property
    def can_sample(self) -> bool:
        """True if `sample` can draw the tokens of the step that was computed last."""
        state, batch = self._runner.execute_model_state, self._batch
        return (
            batch is not None
            and batch.is_plain
            and state is not None
            and state.input_batch is batch.inputs
        )

    @torch.inference_mode()
    def sample(self) -> Drawn:
        """Draw the tokens of the step that was computed last. `sampling.install` makes vLLM's
        sampler draw the same ones."""
        runner, batch = self._runner, self._batch
        assert batch is not None
        hidden, runner.execute_model_state = runner.execute_model_state.hidden_states, None
        rows, requests = len(batch.ids), batch.inputs.idx_mapping
        logits = runner.model.compute_logits(hidden[:rows])
        settings = runner.sampler.sampling_states
        tokens, logprobs = sampled_tokens(
            logits, requests, settings.temperature.gpu, settings.seeds.gpu,
            runner.input_buffers.positions[:rows],
        )  # fmt: skip
        return Drawn(batch, record(requests, tokens, logprobs, runner.req_states))

    def forget(self) -> None:
        """Let vLLM's runner compute the next step."""
        self._batch = None

    def remember(self) -> None:
        """Keep the inputs of the step that vLLM's runner has just computed, if all its requests
        decode by a graph; otherwise forget those of the step before."""
        self._batch, state = None, self._runner.execute_model_state
        if state is None or state.hidden_states is None:
            return
        inputs, rows = state.input_batch, state.input_batch.num_reqs
        if inputs.has_prefill or inputs.num_tokens != rows or inputs.has_structured_output_reqs:
            return
        # the one that vLLM has just run: nothing that would have changed its choice is configured
        graph = self._runner.cudagraph_manager.dispatch(
            rows, rows, 1, num_active_loras=0, max_query_len=1
        )
        if graph.cg_mode == CUDAGraphMode.FULL and graph.num_reqs == inputs.num_reqs_after_padding:
            self._batch = Batch(
                ids=inputs.req_ids,
                index={name: i for i, name in enumerate(inputs.req_ids)},
                inputs=inputs,
                state=state._replace(hidden_states=None, finished_req_ids=set()),
                graph=graph,
                is_plain=self._is_plain(inputs),
            )

    def _is_plain(self, inputs: Any) -> bool:
        sampler, scorer = self._runner.sampler, self._runner.prompt_logprobs_worker
        at, settings = inputs.idx_mapping_np, sampler.sampling_states
        return bool(
            not sampler.needs_logits_processing[at].any()
            and (settings.top_k.np[at] == settings.vocab_size).all()
            and (settings.top_p.np[at] == 1.0).all()
            and (settings.num_logprobs[at] == 0).all()
            and not sampler.logprob_token_ids_state.num_token_ids.np[at].any()
            and not scorer.uses_prompt_logprobs[at].any()
            and not scorer.token_id_scores
            and not sampler.compute_nans
            and not sampler.return_sampling_mask
            and not sampler.use_fp64_gumbel
            and sampler.logprobs_mode in LOGPROBS
            and sampler.trace_replay_state is None
        )


def _has_nothing_special(runner: Any) -> bool:
    """True if no configured feature of vLLM's runner needs to see each step, and our attention
    (SharedPageBuilder) computes all decode steps."""
    groups = [group for of_cache in runner.attn_groups for group in of_cache]
    model = runner.model_state
    return (
        not any(getattr(runner, name) for name in ABSENT)
        and all(getattr(runner.parallel_config, name) == 1 for name in ALONE)
        and not runner.parallel_config.enable_eplb
        and runner.kv_connector is NO_OP_KV_CONNECTOR
        and runner.model_config.rswa_window is None
        and runner.cudagraph_manager is not None
        and runner.decode_query_len == 1
        and type(runner.sampler) is Sampler
        and type(model) is DefaultModelState
        and model.rope_state is None
        and model.prompt_embeds_state is None
        and runner.block_tables.num_kv_cache_groups == 1
        and len(groups) == 1
        and getattr(groups[0].get_metadata_builder(), "decodes_all", False)
    )
