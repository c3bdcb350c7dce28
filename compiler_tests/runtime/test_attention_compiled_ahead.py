"""Kernels of decode steps that are compiled ahead are those of real steps."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from types import SimpleNamespace as Config
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit


class Hopper:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


found = []


def compiled(self, key, signature, device, constexprs, options, attrs, warmup):
    found.append(self.__name__)
    self.device_caches[device][0][key] = object()


driver.set_active(Hopper())
jit.JITFunction._do_compile = compiled
torch.cuda.set_device = lambda device: None
from forgedsl_runtime.services.vllm.upstream import (
    attention, attention_backend, decode_steps, sampling,
)

HEADS, KV_HEADS, SIZE, PAGE, LENGTH, RUNNING = {heads}, {kv_heads}, {size}, 16, {length}, 48
VOCAB = 151936
SIZES = [1, 2, 4, 8, 16, 32, 48, 64, 96]
config = Config(
    scheduler_config=Config(max_num_seqs=RUNNING, async_scheduling=True),
    cache_config=Config(block_size=PAGE, enable_prefix_caching=True),
    compilation_config=Config(cudagraph_capture_sizes=SIZES),
    model_config=Config(
        max_model_len=LENGTH, dtype=torch.bfloat16, get_vocab_size=lambda: VOCAB
    ),
)
attention_backend._compile_ahead(config, [(HEADS, KV_HEADS, SIZE)], 0)
ahead = len(found)
kernels = {{"_group_rows", "_own_starts", "_attend", "_merge_parts"}}
assert kernels | {{"_next_inputs", "_record", "_pieces", "_draw"}} == {{*found}}, found

# A real step: views of one product, and of tables for all requests.
def launch(kernel, grid, *given, **named):
    kernel.warmup(*given, grid=grid, **named)


attention.launch = decode_steps.launch = sampling.launch = launch
groups = attention.SharedPageGroups(max(SIZES), HEADS // KV_HEADS, torch.device("cpu"))
cache = torch.empty((50, KV_HEADS, PAGE, 2 * SIZE), dtype=torch.bfloat16)
blocks = -(-LENGTH // PAGE)
table = torch.zeros((RUNNING, -(-blocks // 8) * 8), dtype=torch.int32)
lengths = torch.zeros(RUNNING, dtype=torch.int32)
slots = torch.zeros(max(SIZES), dtype=torch.int64)
for rows in (n for n in SIZES if n <= RUNNING):
    product = torch.empty((rows, (HEADS + 2 * KV_HEADS) * SIZE), dtype=torch.bfloat16)
    parts = product.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)
    q, k, v = (part.view(rows, -1, SIZE) for part in parts)
    out = torch.empty((rows, HEADS, SIZE), dtype=torch.bfloat16)
    groups.form(table[:rows], lengths[:rows], PAGE)
    new = attention.NewTokens(k, v, slots[:rows])
    attention.decode(q, cache, table[:rows], lengths[:rows], out, groups, 0.1, 1.0, new)
    texts = torch.zeros((RUNNING, LENGTH), dtype=torch.int32)
    counts, numbers = Config(gpu=lengths), torch.zeros(RUNNING, dtype=torch.int64)
    states = Config(num_computed_tokens=counts, total_len=counts, all_token_ids=Config(gpu=texts),
                    last_sampled_tokens=numbers[:, None])
    buffers = Config(input_ids=torch.zeros(999, dtype=torch.int32), seq_lens=lengths,
                     positions=torch.zeros(999, dtype=torch.int64))
    tables = Config(input_block_tables=[table], block_sizes=[PAGE], slot_mappings=numbers[None])
    decode_steps.next_inputs(numbers[:rows], states, buffers, tables)
    logits = torch.empty((rows, VOCAB), dtype=torch.bfloat16)
    drawn = sampling.sampled_tokens(
        logits, numbers[:rows], torch.ones(RUNNING), numbers, buffers.positions[:rows]
    )
    decode_steps.record(numbers[:rows], *drawn, states)
assert found[ahead:] == [], found[ahead:]
"""


def check(**shape: int) -> None:
    command = [sys.executable, "-c", PROGRAM.format(**shape)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.full
def test_real_steps_compile_nothing() -> None:
    check(heads=16, kv_heads=8, size=128, length=2048)


@pytest.mark.full
def test_real_steps_of_a_length_between_compile_nothing() -> None:
    check(heads=32, kv_heads=4, size=64, length=1296)
