"""Attention of a decode step over shared pages, interpreted, against float64; its machine code."""

import subprocess
import sys

import pytest

KERNELS = """
import torch
from forgedsl_runtime.services.vllm.upstream import attention
from tolerance import apart

PAGE = 16
generator = torch.Generator().manual_seed(3)


def batch(rows, siblings, prompt, longest):
    "Page tables of rows in random order, of which `siblings` at a time share whole pages."
    lengths = prompt + torch.randint(1, longest, (rows,), generator=generator)
    table = torch.full((rows, int(lengths.max()) // PAGE + 2), 3)  # what is unused names any page
    free = iter((torch.randperm(rows * table.shape[1], generator=generator) + 1).tolist())
    for row in range(rows):
        for page in range(-(-int(lengths[row]) // PAGE)):
            first = row - row % siblings
            shared = row != first and page < prompt // PAGE
            table[row, page] = table[first, page] if shared else next(free)
    order = torch.randperm(rows, generator=generator)
    return table[order].to(torch.int32), lengths[order].to(torch.int32), table.numel() + 1


def check(groups, heads, kv_heads, width, dtype, *shape):
    attend(groups, heads, kv_heads, width, dtype, True, *shape)
    return attend(groups, heads, kv_heads, width, dtype, False, *shape)


def attend(groups, heads, kv_heads, width, dtype, new, *shape):
    eps, longest = torch.finfo(dtype).eps, shape[2] + shape[3]
    # float32 is added up; weights of narrow numbers are rounded, of float8 in float16
    tolerance = {torch.float32: 2 * apart(torch.float32, longest + width),
                 torch.float16: 2 * eps, torch.float8_e4m3fn: eps / 2}[dtype]
    table, lengths, pages = batch(*shape)
    lengths[1] = 0  # a row that pads a captured graph
    rows = len(lengths)
    cache = torch.randn(pages, kv_heads, PAGE, 2 * width, generator=generator).to(dtype)
    queries = torch.randn(rows, heads, width, generator=generator).to(dtype)
    out = torch.full((rows, heads, width), 7.0)
    groups.form(table, lengths, PAGE)
    whole, given = cache.clone(), None
    if new:  # the newest tokens are not in their pages yet
        last = (lengths.long() - 1).clamp(0)
        page, place = table[torch.arange(rows), last // PAGE].long(), last % PAGE
        slots = torch.where(lengths > 0, page * PAGE + place, -1)
        keys, values = cache[page, :, place].float().split(width, -1)
        kept = cache[page[1], :, place[1]].clone()
        cache[page, :, place] = torch.zeros(()).to(dtype)
        cache[page[1], :, place[1]] = kept
        by = (2.0, 4.0) if dtype.itemsize == 1 else (1.0, 1.0)  # divisors of narrow numbers
        given = attention.NewTokens(by[0] * keys, by[1] * values, slots, *by)
    attention.decode(queries, cache, table, lengths, out, groups, width**-0.5, 2.0, given)
    assert torch.equal(cache.view(torch.uint8), whole.view(torch.uint8))
    for row in range(rows):
        length = int(lengths[row])
        if not length:
            assert (out[row] == 7).all()
            continue
        held = cache[table[row, : -(-length // PAGE)].long()].double().transpose(1, 2)
        held = held.reshape(-1, kv_heads, 2 * width)[:length]
        keys, values = held.repeat_interleave(heads // kv_heads, 1).split(width, -1)
        scores = torch.einsum("hd,lhd->hl", queries[row].double(), keys) * width**-0.5
        wanted = 2 * torch.einsum("hl,lhd->hd", scores.softmax(-1), values)
        torch.testing.assert_close(out[row].double(), wanted, rtol=0, atol=tolerance)
    return groups.starts[:rows]


pairs = attention.SharedPageGroups(24, 2, torch.device("cpu"))
assert (check(pairs, 4, 2, 32, torch.float32, 20, 10, 300, 90) == 288).sum() >= 16
assert (check(pairs, 4, 2, 32, torch.float32, 9, 4, 128, 700) == 128).sum() >= 6
assert not check(pairs, 4, 2, 32, torch.float32, 6, 1, 40, 90).any()
assert not check(pairs, 4, 2, 32, torch.float32, 8, 8, 48, 90).any()  # not worth a program
sevens = attention.SharedPageGroups(16, 7, torch.device("cpu"))
assert (check(sevens, 14, 2, 32, torch.float32, 12, 3, 100, 150) == 96).sum() >= 6
ones = attention.SharedPageGroups(40, 1, torch.device("cpu"))
assert (check(ones, 2, 2, 64, torch.float16, 36, 36, 80, 40) == 80).sum() >= 33
check(ones, 2, 2, 64, torch.float8_e4m3fn, 12, 4, 80, 100)
many = attention.SharedPageGroups(16, 16, torch.device("cpu"))  # no room for a second row
assert not check(many, 32, 2, 32, torch.float32, 6, 3, 100, 60).any()
assert (check(pairs, 4, 2, 32, torch.float32, 3, 2, 96, 40) == 96).sum() == 0  # one has ended
assert (check(pairs, 4, 2, 32, torch.float32, 5, 5, 96, 40) == 96).sum() == 4
check(pairs, 4, 2, 32, torch.float32, 3, 1, 0, 2)  # rows of one token
"""

BACKEND = """
from types import SimpleNamespace
import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from forgedsl_runtime.services.vllm.upstream import attention_backend as ours
from tolerance import close

ours.install()
backend = AttentionBackendEnum.FLASH_ATTN.get_class()
assert backend is ours.SharedPageBackend and backend.get_name() == "FLASH_ATTN"
seen, written = [], []
flash_attn.FlashAttentionImpl.forward = lambda self, *given: seen.append(given) or given[6]
flash_attn.FlashAttentionImpl.do_kv_cache_update = lambda self, *given: written.append(given)
groups = ours.attention.SharedPageGroups(4, 2, torch.device("cpu"))
impl = object.__new__(backend.get_impl_cls())
settings = dict(scale=0.25, kv_cache_dtype="auto", kv_sharing_target_layer_name=None)
impl.__dict__.update(_ours=True, _quantized=False, **settings)
table, lengths = torch.tensor([[1, 0], [2, 3]], dtype=torch.int32), torch.tensor([5, 20]).int()
groups.form(table, lengths, 16)
step = SimpleNamespace(groups=groups, writes=True, block_table=table, seq_lens=lengths)
slots = torch.tensor([1 * 16 + 4, 3 * 16 + 3, -1, -1])
# 4 heads of queries, 2 of keys and of values; float8 holds these numbers
qkv, cache = torch.randint(-8, 9, (4, 8, 16)) / 4, torch.randn(4, 2, 16, 32)
query, new_keys, new_values = qkv.split([4, 2, 2], 1)  # views, as a model has them
for row, (page, place) in enumerate(((1, 4), (3, 3))):
    cache[page, :, place] = torch.cat([new_keys[row], new_values[row]], -1)
whole = cache.clone()
layer = SimpleNamespace(layer_name="first", kv_cache=cache)
context = ForwardContext(
    no_compile_layers={"first": layer}, attn_metadata={"first": step}, slot_mapping={"first": slots}
)
keys, values = cache[[2, 3]].transpose(1, 2).reshape(32, 2, 32)[:20].split(16, -1)
scores = torch.einsum("hd,lhd->hl", query[1], keys.repeat_interleave(2, 1)) * 0.25
wanted = torch.einsum("hl,lhd->hd", scores.softmax(-1), values.repeat_interleave(2, 1))


def run(metadata=step, given=slots):
    "What is left to vLLM (the update, the attention), and our output."
    seen.clear(), written.clear()
    with override_forward_context(context):
        impl.do_kv_cache_update(layer, new_keys, new_values, cache, given)
        out = torch.zeros(4, 4, 16)
        impl.forward(layer, query, new_keys, new_values, cache, metadata, out)
    return len(written), len(seen), out


def right(out):
    torch.testing.assert_close(out[1], wanted, **close(torch.float32, 20 + 16))
    return torch.equal(cache, whole)


cache[1, :, 4] = cache[3, :, 3] = 0
update, attention, out = run()
assert (update, attention) == (0, 0) and right(out)
assert run(given=slots.clone())[:2] == (1, 0)  # an update of other slots is vLLM's
impl.do_kv_cache_update(layer, new_keys, new_values, cache, slots)  # out of any step
assert len(written) == 2
impl.kv_sharing_target_layer_name = "an earlier layer"  # which has written its tokens
assert right(run()[2])
impl.kv_sharing_target_layer_name = None
step.writes = False  # vLLM writes before any row reads
update, attention, out = run()
assert (update, attention) == (1, 0) and right(out)
cache[3, :, 3] = 0
assert run()[:2] == (1, 0) and not torch.equal(cache, whole)
cache.copy_(whole)
step.writes = True
context.slot_mapping = {}  # nothing to write
assert right(run()[2])
context.slot_mapping = {"first": slots}
context.attn_metadata = {"first": SimpleNamespace()}  # a prompt
assert run(SimpleNamespace())[:2] == (1, 1)
context.attn_metadata = {"first": step}
impl._ours = False
assert run()[:2] == (1, 1)
impl.__dict__.update(_ours=True, _quantized=True)
layer.__dict__.update(_k_scale=torch.ones(2), _q_scale_float=1.0, _k_scale_float=2.0)
assert run()[:2] == (1, 1)  # a scale for each head
layer.__dict__.update(_k_scale=torch.ones(1), _v_scale_float=4.0)
cache = cache.to(torch.float8_e4m3fn).view(torch.uint8)
layer.kv_cache = cache
assert run()[:2] == (0, 0)
found = cache.view(torch.float8_e4m3fn)[3, :, 3].float()
rounded = torch.cat([new_keys[1] / 2, new_values[1] / 4], -1).to(torch.float8_e4m3fn)
assert torch.equal(found, rounded.float())

# vLLM's plan of its programs, which our kernel does not need
planned = []
flash_attn.FlashAttentionMetadataBuilder._get_scheduler_metadata = (
    lambda self, **named: planned.append(named)
)
layer.impl = impl


def plans(layers, graphs=CUDAGraphMode.FULL_AND_PIECEWISE, **step):
    "How many plans were made for a step of these layers."
    planned.clear()
    builder = object.__new__(backend.get_builder_cls())
    builder.vllm_config, builder.layer_names = None, [*layers]
    builder.compilation_config = SimpleNamespace(cudagraph_mode=graphs)
    ours.get_layers_from_vllm_config = lambda config, kind, names: layers
    for _ in range(2):
        builder._get_scheduler_metadata(**{"max_query_len": 1, "causal": True, **step})
    return len(planned)


theirs = SimpleNamespace(impl=SimpleNamespace())
assert plans({"first": layer}) == 0
assert plans({"first": layer}, max_query_len=7) == plans({"first": layer}, causal=False) == 2
assert plans({"first": layer, "second": theirs}) == plans({}) == 2
assert plans({"first": layer}, CUDAGraphMode.FULL) == 2  # one graph for mixed steps too
assert plans({"first": layer}, CUDAGraphMode.FULL_DECODE_ONLY) == 0
layer._k_scale = torch.ones(2)
assert plans({"first": layer}) == 2
"""

COMPILED = """
import re
import subprocess
import tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from forgedsl_runtime.services.vllm.upstream import attention

NUMBERS = ("q_row", "q_head", "c_page", "c_head", "c_token", "t_row")
COUNTS = ("chunk", "shared_parts", "own_parts", "most_groups", "new")
WHOLE = ("table", "lengths", "members", "shared_first_rows", "starts")


def ptx(pages, **fixed):
    fixed |= dict(G=2, GP=2, D=128, PAGE=16, MEMBERS=8, TILE=16, BLOCK=64)
    names = attention._attend.arg_names
    kinds = dict.fromkeys((*NUMBERS, *COUNTS), "i32") | dict.fromkeys(WHOLE, "*i32")
    kinds |= {"queries": "*bf16", "cache": pages, "scale": "fp32"}
    kinds |= dict.fromkeys(fixed, "constexpr")
    even = ("queries", "cache", "table", "sides", *NUMBERS)
    source = ASTSource(
        attention._attend, {name: kinds.get(name, "*fp32") for name in names},
        {(names.index(name),): value for name, value in fixed.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in even},
    )
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]


def registers(code):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(code)
        file.flush()
        command = [tool, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert re.search(" 0 bytes spill stores, 0 bytes spill loads", told), told
    return int(re.search(r"Used (\\d+) registers", told)[1])


for fp8, pages, programs in ((False, "*bf16", 4), (True, "*i16", 6)):
    code = ptx(pages, FP8=fp8, STAGES=2)
    # so many programs at a time; registers are given out in eights
    assert registers(code) <= 65536 // (128 * programs) // 8 * 8
    assert code.count("ldmatrix") >= 8 and ".trans" in code, fp8
    assert "ld.shared.b8" not in code, "fp8 is taken from shared memory byte by byte"
    assert ("e4m3x2" in code) == fp8
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KERNELS, id="kernels", marks=pytest.mark.deep),
        pytest.param(BACKEND, id="backend"),
    ],
)
def test_attention_of_a_decode_step(interpreted, program: str) -> None:
    interpreted(program)


@pytest.mark.full
def test_it_is_compiled_for_a_gpu() -> None:
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
