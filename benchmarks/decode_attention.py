"""Attention of one decode step on one GPU: ours against vLLM's FlashAttention, in captured graphs.

    python benchmarks/decode_attention.py [--sweep]

Qwen3-0.6B's heads (16 of queries, 8 of keys, 128 wide), 128 rows of 16 prompts of 256 tokens, some
layers with caches of their own so that none stays in the GPU's cache. `read` is what has to be read
where shared pages are read once; `TB/s` is that over the time.
"""

from __future__ import annotations

import argparse
import itertools
import statistics

import torch

from forgedsl_runtime.services.vllm.upstream import attention

ROWS, SIBLINGS, PROMPT = 128, 8, 256
HEADS, KV_HEADS, WIDTH, LAYERS = 16, 8, 128, 8


def timed(work) -> float:
    """Microseconds a layer, the median of 20 replays."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
    for _ in range(3):
        graph.replay()
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(times) * 1000 / LAYERS


class Case:
    def __init__(self, own: int, page: int, fp8: bool = False, siblings: int = SIBLINGS):
        generator = torch.Generator("cpu").manual_seed(0)
        lengths = torch.full((ROWS,), PROMPT + own)
        lengths += torch.randint(-own // 8, own // 8 + 1, (ROWS,), generator=generator)
        pages = -(-int(lengths.max()) // page)
        shared = PROMPT // page
        table = torch.zeros(ROWS, pages, dtype=torch.int32)
        free = iter((torch.randperm(ROWS * pages, generator=generator) + 1).tolist())
        for row in range(ROWS):
            for column in range(pages):
                old = column < shared and row % siblings
                table[row, column] = table[row - row % siblings, column] if old else next(free)
        self.page, self.count = page, ROWS * pages + 1
        self.table, self.lengths = table.cuda(), lengths.to(torch.int32).cuda()
        tokens = int((lengths - shared * page).sum()) + shared * page * ROWS // siblings
        self.read = tokens * KV_HEADS * WIDTH * 2 * (1 if fp8 else 2)
        self.fp8 = fp8
        self.caches = []
        for _ in range(LAYERS):
            shape = (self.count, KV_HEADS, page, 2 * WIDTH)
            cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            self.caches.append(cache.to(torch.float8_e4m3fn) if fp8 else cache)
        self.queries = torch.randn(ROWS, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.queries)
        self.scale = WIDTH**-0.5

    def ours(self, alone: bool = False, **how):
        groups = attention.SharedPageGroups(ROWS, HEADS // KV_HEADS, self.queries.device)
        if not alone:
            groups.form(self.table, self.lengths, self.page)

        def work() -> None:
            for cache in self.caches:
                batch = (self.queries, cache, self.table, self.lengths, self.out, groups)
                attention.decode(*batch, self.scale, **how)

        return work

    def forming(self):
        groups = attention.SharedPageGroups(ROWS, HEADS // KV_HEADS, self.queries.device)

        def work() -> None:
            for _ in self.caches:
                groups.form(self.table, self.lengths, self.page)

        return work

    def theirs(self, splits: int = 32):
        from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

        starts = torch.arange(ROWS + 1, dtype=torch.int32, device="cuda")
        longest = int(self.lengths.max())
        kind = torch.float8_e4m3fn if self.fp8 else torch.bfloat16
        plan = get_scheduler_metadata(
            batch_size=ROWS, max_seqlen_q=1, max_seqlen_k=longest, num_heads_q=HEADS,
            num_heads_kv=KV_HEADS, headdim=WIDTH, cache_seqlens=self.lengths, qkv_dtype=kind,
            cu_seqlens_q=starts, page_size=self.page, causal=True, window_size=(-1, -1),
            num_splits=splits,
        )  # fmt: skip
        one = torch.ones(ROWS, KV_HEADS, device="cuda")
        extra = {"q_descale": one, "k_descale": one, "v_descale": one} if self.fp8 else {}
        queries = self.queries.to(kind)

        def work() -> None:
            for cache in self.caches:
                keys, values = cache.transpose(1, 2).split(WIDTH, dim=-1)
                flash_attn_varlen_func(
                    q=queries, k=keys, v=values, out=self.out, cu_seqlens_q=starts, max_seqlen_q=1,
                    seqused_k=self.lengths, max_seqlen_k=longest, softmax_scale=self.scale,
                    causal=True, window_size=[-1, -1], block_table=self.table,
                    scheduler_metadata=plan, fa_version=3, num_splits=splits, **extra,
                )  # fmt: skip

        return work


def row(name: str, case: Case, work) -> float:
    try:
        took = timed(work)
    except Exception as error:  # a setting that the GPU cannot hold says so, others go on
        print(f"{name:58s} {type(error).__name__}: {str(error)[:90]}", flush=True)
        torch.cuda.synchronize()
        return float("inf")
    print(f"{name:58s} {took:8.1f} us  {case.read / took / 1e6:6.2f} TB/s", flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", action="store_true")
    sweep = parser.parse_args().sweep
    print(torch.cuda.get_device_name(), torch.__version__)
    kinds = [(own, 16, False, SIBLINGS) for own in (64, 256, 512, 1024)]
    kinds += [(512, 64, False, SIBLINGS)]
    kinds += [(own, 16, True, SIBLINGS) for own in (64, 512, 1024)]
    kinds += [(512, 16, False, 1), (1024, 16, False, 1)]
    for own, page, fp8, siblings in kinds:
        case = Case(own, page, fp8, siblings)
        name = f"own {own}, page {page}, {siblings} siblings{', fp8' if fp8 else ''}"
        print(f"\n{name}: read {case.read / 1e6:.0f} MB a layer")
        row("vLLM, FlashAttention 3", case, case.theirs())
        theirs = case.out.clone()
        row("ours", case, case.ours())
        print("largest difference", (theirs - case.out).abs().max().item())
        row("ours, nothing shared", case, case.ours(alone=True))
        row("forming page groups, once a step", case, case.forming())
        if sweep and own == 512 and siblings > 1:
            found = []
            for block, stages, warps in itertools.product((32, 64, 128), (2, 3), (2, 4)):
                how = {"block": block, "stages": stages, "warps": warps}
                found.append((row(str(how), case, case.ours(**how)), how))
            best = min(found, key=lambda f: f[0])[1]
            for chunk, parts in itertools.product((128, 256, 512, 1024), (2, 6)):
                how = {**best, "chunk": chunk, "own_parts": parts}
                row(str(how), case, case.ours(**how))
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
