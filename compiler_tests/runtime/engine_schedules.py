"""Plays random histories of requests with vLLM's scheduler and with ours, step by step.

    arrivals, resets --> scheduler --SchedulerOutput--> a model that only counts --> scheduler

Run by test_engine_paths: vLLM takes a process for itself. Prints what differed, and how many steps
went the short way. The model's tokens depend on a request's name and length alone, so that a token
that is lost, doubled or out of place shows.
"""

import dataclasses
import json
import random
import sys
from collections import deque
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from vllm import EngineArgs, SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from forgedsl_runtime.services.vllm.upstream.scheduling import (
    FastDecodeAsyncScheduler,
    FastDecodeScheduler,
)

BLOCK, CONTEXT, END = 4, 64, 3
CLASSES = {
    False: {"theirs": Scheduler, "ours": FastDecodeScheduler},
    True: {"theirs": AsyncScheduler, "ours": FastDecodeAsyncScheduler},
}


@dataclasses.dataclass
class Setting:
    overlaps: bool
    second_runner: bool
    caches: bool
    blocks: int
    running: int


class Counting:
    """A model runner that keeps how long each request is."""

    def __init__(self) -> None:
        self.length: dict[str, int] = {}

    def run(self, output: Any) -> ModelRunnerOutput:
        computed = {}
        for new in output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            self.length[new.req_id] = len(new.prefill_token_ids or new.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        for request_id, count in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            computed[request_id] = count
            if request_id in cached.all_token_ids:
                self.length[request_id] = len(cached.all_token_ids[request_id])
        ids, sampled, rows = list(output.num_scheduled_tokens), [], []
        for request_id in ids:
            length = self.length[request_id]
            is_whole = computed[request_id] + output.num_scheduled_tokens[request_id] >= length
            found = crc32(f"{request_id} {length}".encode())
            sampled.append([found % 40] if is_whole else [])
            rows.append([found / 2**32])
            self.length[request_id] += is_whole
        logprobs = np.array(rows, dtype=np.float32).reshape(len(ids), 1)
        ranks = np.zeros(len(ids), dtype=np.int32)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=LogprobsLists(ranks[:, None], logprobs, ranks),
        )


def scheduler(kind: type, setting: Setting, config: Any) -> Any:
    config.scheduler_config.async_scheduling = setting.overlaps
    config.scheduler_config.max_num_seqs = setting.running
    config.cache_config.enable_prefix_caching = setting.caches
    config.cache_config.num_gpu_blocks = setting.blocks
    config.cache_config.block_size = BLOCK
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=setting.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
    )
    made = kind(config, cache, StructuredOutputManager(config), BLOCK, BLOCK)
    made.use_v2_model_runner = setting.second_runner
    return made


def request(name: str, rng: random.Random, hasher: Any) -> Request:
    prompt = [5] * rng.choice([0, 8, 9]) + [rng.randrange(40) for _ in range(rng.randint(1, 12))]
    params = SamplingParams(max_tokens=rng.choice([1, 2, 20, 90]), logprobs=0)
    params.stop_token_ids = rng.choice([[], [7]])
    params._eos_token_id = END
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=params,
        pooling_params=None,
        block_hasher=hasher,
    )


def play(
    kind: type, setting: Setting, seed: int, config: Any
) -> tuple[list[Any], dict[str, Any], int]:
    """One history: what was scheduled in each step, what each request gave, short steps."""
    rng, made, runner = random.Random(seed), scheduler(kind, setting, config), Counting()
    hash_of = get_hash_fn_by_name("sha256")
    init_none_hash(hash_of)
    hasher = get_request_block_hasher(BLOCK, hash_of) if setting.caches else None
    short = isinstance(made, FastDecodeScheduler)
    given: dict[str, Any] = {}
    steps: list[Any] = []
    queue: deque[Any] = deque()
    names = 0
    for step in range(160):
        for _ in range(rng.choice([0, 0, 0, 0, 0, 0, 1, 4]) if step < 90 else 0):
            names += 1
            name, is_followed = f"r{names}", rng.random() < 0.97
            if short and is_followed:
                made.follow(name, name)
            made.add_request(request(name, rng, hasher))
            given[name] = [[], [], None]
        if rng.random() < 0.03:
            made.reset_prefix_cache(reset_running_requests=True)
        if made.has_requests():
            output = made.schedule()
            steps.append(shown(output))
            queue.append((output, runner.run(output)))
            if setting.overlaps and len(queue) < 2 and output.total_num_scheduled_tokens:
                continue
        if not queue:
            continue
        outputs = made.update_from_output(*queue.popleft())
        for each in outputs.get(0).outputs if outputs.get(0) else ():
            tokens, logprobs, _ = given[each.request_id]
            tokens += each.new_token_ids
            logprobs += each.new_logprobs.logprobs[:, 0].tolist() if each.new_logprobs else []
            given[each.request_id][2] = str(each.finish_reason)
        for tally in made.take_finished() if short else ():
            given[tally.name] = [tally.token_ids, tally.logprobs, str(tally.reason)]
        pool = made.kv_cache_manager.block_pool
        steps.append([pool.get_num_free_blocks(), len(pool.cached_block_hash_to_block)])
        assert not short or made.followed.keys() <= made.requests.keys()
    ended = {name: value for name, value in given.items() if value[2] not in (None, "None")}
    return steps, ended, made.num_short if short else 0


def shown(output: Any) -> dict[str, Any]:
    """What a worker sees of a step."""
    sets = ("scheduled_cached_reqs", "scheduled_new_reqs", "finished_req_ids", "preempted_req_ids")
    names = {field.name for field in dataclasses.fields(output)} - set(sets)
    return {
        **{name: repr(getattr(output, name)) for name in names},
        **dataclasses.asdict(output.scheduled_cached_reqs),
        "new": [(r.req_id, r.block_ids, r.num_computed_tokens) for r in output.scheduled_new_reqs],
        "scheduled": dict(output.num_scheduled_tokens),
        "gone": sorted(output.finished_req_ids),
        "preempted": sorted(output.preempted_req_ids or ()),
    }  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    config = EngineArgs(
        model=str(folder), dtype="float32", max_model_len=CONTEXT, max_num_batched_tokens=96,
        enforce_eager=True, disable_log_stats=True, max_num_seqs=32, enable_chunked_prefill=True,
    ).create_engine_config()  # fmt: skip
    found = []
    for seed in range(int(sys.argv[2])):
        rng = random.Random(f"setting {seed}")
        overlaps = rng.random() < 0.5
        setting = Setting(
            overlaps=overlaps,
            second_runner=overlaps and rng.random() < 0.7,
            caches=rng.random() < 0.6,
            blocks=rng.choice([30, 60, 400]),
            running=rng.choice([4, 32]),
        )
        kinds = CLASSES[overlaps]
        theirs, ours = (play(kinds[who], setting, seed, config) for who in ("theirs", "ours"))
        found.append({
            "setting": dataclasses.asdict(setting),
            "steps": theirs[0] == ours[0], "given": theirs[1] == ours[1],
            "ended": len(ours[1]), "all": len(theirs[0]), "short": ours[2],
            "preempted": sum(bool(step["preempted"]) for step in ours[0] if isinstance(step, dict)),
        })  # fmt: skip
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main()
