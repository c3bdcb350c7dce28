"""What a decode step costs, by attention kernel, layout of keys and values, block size and dtype.

    python benchmarks/decode.py                                    # kernels alone, all variants
    python benchmarks/decode.py --engine fa3 fa3,LBHNC,64 triton   # vLLM whole, the variants named

Qwen3-0.6B's shape, random weights; 128 requests in groups of 8 that share a prompt of 256 tokens,
then 1,024 tokens each. Needs vLLM alone. A variant is KERNEL[,LAYOUT][,BLOCK][,splits=N][,fp8]:

    fa3, fa2, triton      vLLM's FlashAttention 3 and 2, its Triton kernel
    LBNHC, LBHNC          heads inside the tokens of a block (vLLM's choice), or tokens inside heads
    16, 32, 64, 128       tokens of a block (16 is vLLM's)

Kernels: milliseconds of attention in a decode step (28 layers, in a CUDA graph), at each context.
Engine: milliseconds of a whole decode step, of the GPU's kernels in it and of attention among them;
one process each, not compiled, so that a variant takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYERS, HEADS, KV_HEADS, HEAD = 28, 16, 8, 128
REQUESTS, GROUP, PROMPT, NEW = 128, 8, 256, 1024
LAYOUTS = ("LBNHC", "LBHNC")
CONTEXTS = (256, 512, 768, 1024, 1280)
SHAPES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": LAYERS,
             "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
             "vocab_size": 151_936},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "vocab_size": 512},
}  # fmt: skip
KERNELS = [
    f"fa3,{layout},{block}{more}"
    for more in ("", ",fp8")
    for layout in LAYOUTS
    for block in (16, 32, 64, 128)
] + [
    "fa3,splits=1", "fa3,splits=2", "fa3,splits=4", "fa3,LBHNC,64,splits=1",
    "fa3,LBHNC,64,splits=2",
    "fa2,LBNHC,16", "fa2,LBHNC,64", "triton,LBNHC,16", "triton,LBHNC,64",
]  # fmt: skip


@dataclass(frozen=True)
class Variant:
    kernel: str
    layout: str = LAYOUTS[0]
    block: int = 16
    splits: int = 32
    fp8: bool = False

    @classmethod
    def read(cls, text: str) -> Variant:
        kernel, *rest = text.split(",")
        if kernel not in ("fa3", "fa2", "triton", "cpu"):
            raise SystemExit(f"no kernel {kernel}: fa3, fa2 or triton")
        found: dict[str, Any] = {}
        for word in rest:
            if word in LAYOUTS:
                found["layout"] = word
            elif word == "fp8":
                found["fp8"] = True
            else:
                name, _, value = word.rpartition("=")
                found[name or "block"] = int(value)
        return cls(kernel, **found)


# ---- kernels alone


class Cache:
    """Keys and values of a few layers as vLLM lays them out, and the blocks of each request."""

    layers = 4
    """read in turn: one is 0.6 GB, far more than L2 holds"""

    def __init__(self, variant: Variant) -> None:
        import torch

        per_request, shared = -(-(PROMPT + NEW) // variant.block), PROMPT // variant.block
        count = REQUESTS * (per_request - shared) + REQUESTS // GROUP * shared
        ids = list(range(1, count + 1))
        random.Random(1).shuffle(ids)
        prompts = [[ids.pop() for _ in range(shared)] for _ in range(REQUESTS // GROUP)]
        rows = [
            prompts[i // GROUP] + [ids.pop() for _ in range(per_request - shared)]
            for i in range(REQUESTS)
        ]
        self.table = torch.tensor(rows, dtype=torch.int32, device="cuda")
        dtype = torch.float8_e4m3fn if variant.fp8 else torch.bfloat16
        inner = (
            (KV_HEADS, variant.block) if variant.layout == "LBHNC" else (variant.block, KV_HEADS)
        )
        self.pairs = []
        for _ in range(self.layers):
            made = torch.randn((count + 1, *inner, 2 * HEAD), device="cuda", dtype=torch.bfloat16)
            made = made.to(dtype)
            whole = made.transpose(1, 2) if variant.layout == "LBHNC" else made
            self.pairs.append(torch.split(whole, HEAD, dim=-1))


def attend(variant: Variant, cache: Cache, context: int) -> Callable[[], None]:
    """Attention of one decode step over the layers of `cache`; what vLLM does once a step is done
    before."""
    import torch

    queries = torch.randn((REQUESTS, HEADS, HEAD), device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(queries)
    if variant.fp8:
        queries = queries.to(torch.float8_e4m3fn)
    starts = torch.arange(REQUESTS + 1, dtype=torch.int32, device="cuda")
    used = torch.full((REQUESTS,), context, dtype=torch.int32, device="cuda")
    ones = torch.ones((REQUESTS, KV_HEADS), device="cuda") if variant.fp8 else None
    common: dict[str, Any] = {
        "q": queries, "out": out, "cu_seqlens_q": starts, "max_seqlen_q": 1, "seqused_k": used,
        "max_seqlen_k": 2048, "softmax_scale": HEAD**-0.5, "causal": True,
        "block_table": cache.table, "softcap": 0.0, "q_descale": ones, "k_descale": ones,
        "v_descale": ones,
    }  # fmt: skip
    if variant.kernel == "triton":
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        def run_triton() -> None:
            for k, v in cache.pairs:
                unified_attention(k=k, v=v, window_size=(-1, -1), **common)

        return run_triton
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    version = 3 if variant.kernel == "fa3" else 2
    plan = get_scheduler_metadata(
        batch_size=REQUESTS, max_seqlen_q=1, max_seqlen_k=2048, num_heads_q=HEADS,
        num_heads_kv=KV_HEADS, headdim=HEAD, cache_seqlens=used, qkv_dtype=queries.dtype,
        cu_seqlens_q=starts, page_size=variant.block, causal=True, num_splits=variant.splits,
    ) if version == 3 else None  # fmt: skip
    splits = variant.splits if version == 3 else 0
    if version == 2:
        for name in ("q_descale", "k_descale", "v_descale"):
            common.pop(name)

    def run() -> None:
        for k, v in cache.pairs:
            flash_attn_varlen_func(
                k=k, v=v, window_size=[-1, -1], scheduler_metadata=plan, fa_version=version,
                num_splits=splits, **common,
            )  # fmt: skip

    return run


def milliseconds(run: Callable[[], None], repeats: int) -> float:
    """Median time of `run` in a CUDA graph."""
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times: list[float] = []
    for _ in range(repeats):
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def kernels(names: list[str], repeats: int) -> None:
    """Print milliseconds of attention in a decode step, and the rate at the longest context."""
    import torch

    print(f"{'attention, ms a step':28}" + "".join(f"{c:>8}" for c in CONTEXTS) + "    TB/s")
    for name in names:
        variant = Variant.read(name)
        try:
            cache = Cache(variant)
            times = [
                milliseconds(attend(variant, cache, context), repeats) * LAYERS / Cache.layers
                for context in CONTEXTS
            ]
        except Exception as error:  # one that this vLLM or GPU does not have ends no other
            print(f"{name:28}  {type(error).__name__}: {str(error).splitlines()[0][:90]}")
            continue
        size = 2 * KV_HEADS * HEAD * (1 if variant.fp8 else 2) * LAYERS
        rate = REQUESTS * CONTEXTS[-1] * size / times[-1] / 1e9
        print(f"{name:28}" + "".join(f"{t:8.3f}" for t in times) + f"{rate:8.2f}", flush=True)
        del cache
        torch.cuda.empty_cache()


# ---- a whole engine


def engine(variant: Variant, shape: str, new: int) -> dict[str, Any]:
    """Decode with vLLM in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if variant.kernel != "cpu":
        os.environ["VLLM_KV_CACHE_LAYOUT"] = variant.layout
    begin = time.perf_counter()
    from vllm import EngineArgs, SamplingParams, TokensPrompt
    from vllm.v1.engine.llm_engine import LLMEngine

    with tempfile.TemporaryDirectory() as folder:
        config = SHAPES[shape] | {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": 1,
        }  # fmt: skip
        (Path(folder) / "config.json").write_text(json.dumps(config))
        extra: dict[str, Any] = {}
        if variant.kernel != "cpu":
            backend = "TRITON_ATTN" if variant.kernel == "triton" else "FLASH_ATTN"
            extra = {
                "attention_config": {
                    "backend": backend,
                    "flash_attn_version": {"fa2": 2, "fa3": 3}.get(variant.kernel),
                    "flash_attn_max_num_splits_for_cuda_graph": variant.splits,
                },
                "compilation_config": {
                    "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY",
                    "cudagraph_capture_sizes": [REQUESTS],
                },
                "gpu_memory_utilization": 0.5,
            }  # fmt: skip
        args = EngineArgs(
            model=folder, skip_tokenizer_init=True, load_format="dummy", max_model_len=2048,
            max_num_seqs=REQUESTS, block_size=variant.block, enable_prefix_caching=True,
            kv_cache_dtype="fp8" if variant.fp8 else "auto", disable_log_stats=True, **extra,
        )  # fmt: skip
        own = LLMEngine.from_engine_args(args)
    start = time.perf_counter() - begin
    params = SamplingParams(max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False)
    for i in range(REQUESTS):
        prompt = [3 + (i // GROUP * 7 + at) % 200 for at in range(PROMPT)]
        own.add_request(str(i), TokensPrompt(prompt_token_ids=prompt), params)
    return {"start_s": round(start, 1)} | decoded(own, new)


def decoded(own: Any, new: int) -> dict[str, Any]:
    """Milliseconds of a step by quarter of the completion; the GPU's from the middle."""
    import torch

    stamps: list[float] = []
    profiled: Any = None
    middle = range(new // 2, new // 2 + min(32, new // 4))
    while own.has_unfinished_requests():
        if torch.cuda.is_available() and len(stamps) == middle.start:
            profiled = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profiled.__enter__()
        own.step()
        stamps.append(time.perf_counter())
        if profiled is not None and len(stamps) == middle.stop:
            torch.cuda.synchronize()
            profiled.__exit__(None, None, None)
    found: dict[str, Any] = {"steps": len(stamps)}
    parts = ((0.1, 0.3), (0.3, 0.45), (0.6, 0.8), (0.8, 0.95))
    for begin, end in parts:
        first, last = int(begin * len(stamps)), int(end * len(stamps))
        label = f"ms at {PROMPT + int((begin + end) / 2 * new)}"
        found[label] = round(1e3 * (stamps[last] - stamps[first]) / (last - first), 3)
    if profiled is not None:
        rows = [(row.key, row.device_time_total / 1e3) for row in profiled.key_averages()]
        rows = [(key, ms / len(middle)) for key, ms in rows]
        found["gpu"] = round(sum(ms for _, ms in rows), 3)
        words = ("flash", "attention")
        found["attention"] = round(
            sum(ms for key, ms in rows if any(w in key.lower() for w in words)), 3
        )
        rows.sort(key=lambda row: -row[1])
        found["kernels"] = {key[:60]: round(ms, 3) for key, ms in rows[:6]}
    return found


def engines(names: list[str], shape: str, new: int) -> None:
    """Each variant in a process of its own, a line of JSON each."""
    for name in names:
        command = [sys.executable, __file__, "--one", name, "--shape", shape, "--new", str(new)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        print(name, lines[-1] if lines else done.stderr[-1500:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variants", nargs="*", help="of the kernels alone; none: all")
    parser.add_argument("--engine", nargs="+", default=[], metavar="VARIANT")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, default="0.6B")
    parser.add_argument("--new", type=int, default=NEW)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(engine(Variant.read(args.one), args.shape, args.new)))
    elif args.engine:
        engines(args.engine, args.shape, args.new)
    else:
        kernels(args.variants or KERNELS, args.repeats)


if __name__ == "__main__":
    main()
