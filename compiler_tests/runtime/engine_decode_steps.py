"""Plays random histories of requests with vLLM's runner, with and without our decode steps.

    requests --> our scheduler --SchedulerOutput--> vLLM's GPUModelRunner, with its kernels
                                                      or DecodeSteps, where they take a step

Run by test_engine_paths, with TRITON_INTERPRET=1: all kernels run on the CPU. The model is a table
of random numbers. Like attention, it reads the tokens of a request from a cache, through its pages,
and it writes new tokens to their slots. So a wrong token, position, length, page or slot shows.
"""

import inspect
import json
import random
import sys
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
import triton.backends

with patch.dict(triton.backends.backends, {"cpu": SimpleNamespace(driver=None)}):
    import vllm.triton_utils as triton_utils  # vLLM's kernels are placeholders otherwise
assert triton_utils.HAS_TRITON

from engine_schedules import BLOCK, CONTEXT, Setting, request, scheduler, shown  # noqa: E402
from vllm import EngineArgs  # noqa: E402
from vllm.config import CUDAGraphMode  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.sample.ops import topk_topp_sampler  # noqa: E402
from vllm.v1.worker import gpu_worker  # noqa: E402
from vllm.v1.worker.gpu import buffer_utils, model_runner  # noqa: E402
from vllm.v1.worker.gpu.async_utils import StepTimingCollector  # noqa: E402
from vllm.v1.worker.gpu.block_table import BlockTables  # noqa: E402
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor  # noqa: E402
from vllm.v1.worker.gpu.ec_connector import NO_OP_EC_CONNECTOR  # noqa: E402
from vllm.v1.worker.gpu.input_batch import InputBuffers  # noqa: E402
from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR  # noqa: E402
from vllm.v1.worker.gpu.lora_utils import LoraState  # noqa: E402
from vllm.v1.worker.gpu.model_states.default import DefaultModelState  # noqa: E402
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker  # noqa: E402
from vllm.v1.worker.gpu.sample.sampler import Sampler  # noqa: E402
from vllm.v1.worker.gpu.states import RequestState  # noqa: E402

from forgedsl_runtime.services.vllm.upstream import decode_steps, sampling  # noqa: E402
from forgedsl_runtime.services.vllm.upstream.attention_backend import (  # noqa: E402
    SharedPageBuilder,
)
from forgedsl_runtime.services.vllm.upstream.decode_steps import (  # noqa: E402
    ABSENT,
    ALONE,
    DecodeSteps,
)
from forgedsl_runtime.services.vllm.upstream.scheduling import (  # noqa: E402
    FastDecodeAsyncScheduler,
)
from forgedsl_runtime.services.vllm.upstream.worker import EngineWorker  # noqa: E402

VOCAB, WIDTH, CPU = 40, 8, torch.device("cpu")
PROCESSED = (
    ("temperature", 0.7), ("temperature", 0.0), ("min_p", 0.1), ("top_k", 3), ("top_p", 0.5),
    ("min_tokens", 9), ("frequency_penalty", 1.0), ("logprobs", 2), ("prompt_logprobs", 1),
)  # fmt: skip
"""sampling settings of which `DecodeSteps` leaves all but a temperature of 0 to vLLM"""
buffer_utils.is_uva_available = lambda: False
topk_topp_sampler.HAS_TRITON = False  # Triton's interpreter cannot run this kernel


class OnCpu:
    """vLLM's output of a step, without streams and events."""

    def __init__(self, model_runner_output: Any, sampler_output: Any, **_: Any) -> None:
        self.output, self.sampled = model_runner_output, sampler_output
        self.counts = sampler_output.num_sampled.tolist()

    def get_output(self) -> ModelRunnerOutput:
        tokens = self.sampled.sampled_token_ids.tolist()
        self.output.sampled_token_ids = [
            ids[:count] for ids, count in zip(tokens, self.counts, strict=True)
        ]
        self.output.logprobs = self.sampled.logprobs_tensors.tolists()
        return self.output


class Model:
    """Stands for the model and its graphs."""

    def __init__(self, runner: Any, blocks: int) -> None:
        self.runner = runner
        self.cache = torch.full((blocks * BLOCK,), -1)
        generator = torch.Generator().manual_seed(5)
        self.features = torch.randn(997, WIDTH, generator=generator)
        self.head = 2 * torch.randn(WIDTH, VOCAB, generator=generator)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.head

    def dispatch(self, rows: int, tokens: int, uniform: Any, **_: Any) -> BatchExecutionDescriptor:
        """The smallest graph for a batch: up to 3 rows are added."""
        if uniform != 1:
            return BatchExecutionDescriptor(CUDAGraphMode.FULL, tokens, rows)
        padded = -(-rows // 4) * 4
        return BatchExecutionDescriptor(CUDAGraphMode.FULL, padded, padded, 1)

    def run_fullgraph(self, graph: BatchExecutionDescriptor) -> torch.Tensor:
        buffers, tables = self.runner.input_buffers, self.runner.block_tables
        bounds = buffers.query_start_loc.tolist()
        table, slots = tables.input_block_tables[0].tolist(), tables.slot_mappings[0]
        rows, tokens = graph.num_reqs or 0, bounds[graph.num_reqs or 0]
        assert (slots[tokens : graph.num_tokens] == -1).all()
        assert (slots[:tokens] >= 0).all()
        self.cache[slots[:tokens]] = buffers.input_ids[:tokens].long()
        hidden = torch.zeros(graph.num_tokens, WIDTH)
        for row in range(rows):
            length = int(buffers.seq_lens[row])
            places = [table[row][at // BLOCK] * BLOCK + at % BLOCK for at in range(length)]
            text = self.cache[places].tolist()
            assert -1 not in text
            for token in range(bounds[row], bounds[row + 1]):
                at = int(buffers.positions[token])
                hidden[token] = self.features[crc32(str(text[: at + 1]).encode()) % 997]
            assert bounds[row] == bounds[row + 1] or at == length - 1
            assert (bounds[row] == bounds[row + 1]) == (length == 0)
        return hidden


def made_runner(setting: Setting, config: Any, made: Any) -> Any:
    """vLLM's runner with `Model` in place of a model."""
    runner: Any = model_runner.GPUModelRunner.__new__(model_runner.GPUModelRunner)
    most = setting.running
    for name in (*ABSENT, "execute_model_state", "structured_outputs_worker", "rejection_sampler"):
        runner.__dict__[name] = None
    runner.__dict__.update(
        device=CPU, parallel_config=config.parallel_config, model_config=config.model_config,
        observability_config=config.observability_config, req_states=RequestState(
            most, CONTEXT, 96, 0, VOCAB, CPU
        ), input_buffers=InputBuffers(most, 96, CPU), lora_state=LoraState(most),
        block_tables=BlockTables([BLOCK], most, 96, [CONTEXT // BLOCK], CPU), max_num_reqs=most,
        max_num_tokens=96, vocab_size=VOCAB, dcp_size=1, use_pp=False, use_dcp=False,
        is_first_pp_rank=True, is_last_pp_rank=True, decode_query_len=1, num_speculative_steps=0,
        kv_connector=NO_OP_KV_CONNECTOR, step_timing=StepTimingCollector(), attn_groups=[],
        kv_cache_config=made.kv_cache_config, output_copy_stream=None,
        ec_connector=NO_OP_EC_CONNECTOR,
        prompt_logprobs_worker=PromptLogprobsWorker(most, CPU),
        eplb=SimpleNamespace(prepare_forward=lambda *_: None, step=lambda **_: None),
    )  # fmt: skip
    runner.sampler = Sampler(config, most, VOCAB, CPU, runner.req_states)
    runner.sampler.use_flashinfer = False
    runner.model_state = DefaultModelState.__new__(DefaultModelState)
    runner.model_state.__dict__.update(
        rope_state=None, prompt_embeds_state=None, prepare_attn=lambda *_, **named: {}
    )
    runner.model = runner.cudagraph_manager = Model(runner, setting.blocks)
    return runner


class Worker:
    """`worker.EngineWorker` over this runner, or with `ours` false vLLM's part of it alone."""

    def __init__(self, runner: Any, *, ours: bool) -> None:
        self.runner = runner
        self.steps = DecodeSteps(runner) if ours else None
        self.worker: Any = EngineWorker.__new__(EngineWorker)
        self.worker.__dict__.update(model_runner=runner, decode_steps=self.steps, profiler=None)

    def run(self, output: Any) -> Any:
        found = self.worker.execute_model(output)
        if not output.total_num_scheduled_tokens:
            return found
        return self.worker.sample_tokens(None).get_output()

    def state(self) -> list[Any]:
        """What vLLM's next step reads."""
        states, tables = self.runner.req_states, self.runner.block_tables
        rows = sorted(states.index_to_req_id)
        tensors = (states.num_computed_tokens.gpu, states.total_len.gpu, states.last_sampled_tokens)
        texts, pages = states.all_token_ids.gpu, tables.num_blocks.np[0]
        return [
            states.req_id_to_index,
            states.num_computed_tokens_np[rows].tolist(),
            *(tensor[rows].flatten().tolist() for tensor in tensors),
            [texts[row, : states.total_len.gpu[row]].tolist() for row in rows],
            [tables.block_tables[0].gpu[row, : pages[row]].tolist() for row in rows],
        ]


def play(setting: Setting, seed: int, config: Any, *, ours: bool) -> dict[str, Any]:
    """One history: what each step was given and gave, and the state after it."""
    rng, made = random.Random(seed), scheduler(FastDecodeAsyncScheduler, setting, config)
    worker = Worker(made_runner(setting, config, made), ours=ours)
    hash_of = get_hash_fn_by_name("sha256")
    init_none_hash(hash_of)
    hasher = get_request_block_hasher(BLOCK, hash_of) if setting.caches else None
    steps: list[Any] = []
    queue: deque[Any] = deque()
    names, processed = 0, rng.random() < 0.5
    for step in range(44):
        for _ in range(rng.choice([0, 0, 0, 0, 0, 0, 0, 3]) if 0 < step < 28 else 3 * (step == 0)):
            names += 1
            new, params = request(f"r{names}", rng, hasher), None
            params = new.sampling_params
            assert params is not None
            params.seed, params.max_tokens = rng.randrange(2**40), rng.choice([2, 20, 40])
            if processed and rng.random() < 0.4:  # vLLM's sampler draws the tokens of such batches
                name, value = rng.choice(PROCESSED)
                setattr(params, name, value)
            made.follow(new.request_id, new.request_id)
            made.add_request(new)
        if rng.random() < 0.02:
            made.reset_prefix_cache(reset_running_requests=True)
        if made.has_requests():
            output = made.schedule()
            given = worker.run(output)
            queue.append((output, given))
            drawn = [
                given.sampled_token_ids,
                given.logprobs.logprobs.tolist() if given.logprobs else 0,
            ]
            steps.append([shown(output), drawn, worker.state()])
            if len(queue) < 2 and output.total_num_scheduled_tokens:
                continue
        if queue:
            made.update_from_output(*queue.popleft())
            made.take_finished()
    taken = worker.steps.num_taken if worker.steps is not None else 0
    return {"steps": steps, "taken": taken, "ended": names - len(made.requests)}


def drawn(
    logits: torch.Tensor, requests: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Stands for `sampling.sampled_tokens`, whose kernels take long on a CPU."""
    tokens = []
    for row, number in enumerate(requests.tolist()):
        given = f"{seeds[number]} {positions[row]}".encode()
        noise = torch.rand(VOCAB, generator=torch.Generator().manual_seed(crc32(given)))
        cold = temperatures[number] == 0.0
        tokens.append(int((logits[row] - (0.0 if cold else noise.log().neg().log())).argmax()))
    found = torch.tensor(tokens)
    return found, logits.float().log_softmax(-1).gather(-1, found[:, None])[:, 0]


def derived(kind: type) -> Any:
    """An object of a class made from `kind`, which may do other things."""
    other: Any = type("Derived", (kind,), {})
    return other.__new__(other)


def accepted_features(config: Any) -> list[str]:
    """Features with which our steps would still be used, though they need to see each step."""
    setting = Setting(overlaps=True, second_runner=True, caches=True, blocks=40, running=4)
    runner = made_runner(setting, config, scheduler(FastDecodeAsyncScheduler, setting, config))
    builder = SharedPageBuilder.__new__(SharedPageBuilder)
    builder.__dict__["decodes_all"] = True
    group = SimpleNamespace(get_metadata_builder=lambda: builder)
    runner.attn_groups = [[group]]
    assert DecodeSteps.of(runner) is not None
    text = inspect.getsource(model_runner)
    assert [name for name in ABSENT if f"self.{name}" not in text] == []
    changes: list[tuple[Any, str, Any]] = [
        *((runner, name, object()) for name in ABSENT),
        *((runner.parallel_config, name, 2) for name in ALONE),
        (runner, "kv_connector", None), (runner, "cudagraph_manager", None),
        (runner, "decode_query_len", 2), (runner, "attn_groups", [[group, group]]),
        (runner, "sampler", None), (builder, "decodes_all", False),
        (runner.model_state, "rope_state", object()),
        (runner.block_tables, "num_kv_cache_groups", 2),
        (runner.model_state, "prompt_embeds_state", object()),
        (runner, "model_state", derived(DefaultModelState)),
        (runner, "sampler", derived(Sampler)),
        (runner.parallel_config, "enable_eplb", True),
    ]  # fmt: skip
    found = []
    for owner, name, value in changes:
        with patch.dict(owner.__dict__, {name: value}):
            if DecodeSteps.of(runner) is not None:
                found.append(name)
    return found


def main() -> None:
    sampling.sampled_tokens = decode_steps.sampled_tokens = drawn
    sampling.install()
    model_runner.AsyncOutput = OnCpu
    gpu_worker.Worker.execute_model = lambda self, output: self.model_runner.execute_model(output)
    gpu_worker.Worker.sample_tokens = lambda self, given: self.model_runner.sample_tokens(given)
    model_runner.GPUModelRunner.main_stream = property(lambda self: None)
    config = EngineArgs(
        model=sys.argv[1], dtype="float32", max_model_len=CONTEXT, max_num_batched_tokens=96,
        enforce_eager=True, disable_log_stats=True, max_num_seqs=32, enable_chunked_prefill=True,
    ).create_engine_config()  # fmt: skip
    found = []
    for seed in range(int(sys.argv[2])):
        rng = random.Random(f"decode {seed}")
        setting = Setting(
            overlaps=True, second_runner=True, caches=rng.random() < 0.6,
            blocks=rng.choice([40, 400]), running=rng.choice([4, 12]),
        )  # fmt: skip
        theirs, ours = (play(setting, seed, config, ours=each) for each in (False, True))
        found.append({
            "same": theirs["steps"] == ours["steps"], "taken": ours["taken"],
            "steps": len(ours["steps"]), "ended": ours["ended"],
        })  # fmt: skip
    print("RESULT" + json.dumps({"played": found, "accepted": accepted_features(config)}))


if __name__ == "__main__":
    main()
