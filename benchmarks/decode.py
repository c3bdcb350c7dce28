"""A decode step of the real engine on one GPU: Qwen3-0.6B's shape, random weights.

    python benchmarks/decode.py [--attention theirs] [--steps theirs] [--rows 128] [--tokens 1024]
                                [--kv fp8] [--extra '{"compilation_config": ...}'] [--forced]
                                [--profile] [--kernels]

16 prompts of 256 tokens with siblings, to the last token unless a completion draws the end token
(`--forced`: no end before; vLLM then copies and masks the logits of each step). Prints the start,
the mean of a step, steps at points of the completion, a checksum of all tokens, and the largest
difference between log-probs of the sampler and of a pass over the whole text. With `--kernels`, a
further round prints the kernels of a decode step at its start and at its end.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from zlib import crc32

VOCAB, PROMPT, SIBLINGS = 151936, 256, 8


def model_folder(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "t1", "eos_token": "t2", "bos_token": "t3"}
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
    Qwen3Config(
        vocab_size=VOCAB, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        max_position_embeddings=40960, rope_theta=1e6, dtype="bfloat16", eos_token_id=2,
        architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    return folder


def randomized(model: Any) -> None:
    for weight in model.parameters():
        weight.data.normal_(0, 0.03) if weight.dim() > 1 else weight.data.fill_(1.0)


def print_kernels(engine: Any, title: str, steps: int = 20) -> None:
    """Print the kernels of these decode steps, by their time: microseconds a step, and launches."""
    import torch
    from torch.profiler import ProfilerActivity

    torch.cuda.synchronize()
    begun = time.perf_counter()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()
    whole = 1e6 * (time.perf_counter() - begun) / steps
    found = [event for event in profiled.key_averages() if event.device_time_total]
    busy = sum(event.self_device_time_total for event in found) / steps
    print(f"{title}: {whole:.0f} us a step, kernels {busy:.0f} us", flush=True)
    for event in sorted(found, key=lambda event: -event.self_device_time_total)[:40]:
        each = event.self_device_time_total / steps
        print(f"  {each:8.1f} us  {event.count / steps:6.1f}  {event.key[:110]}", flush=True)


def steps_taken(worker: Any) -> int:
    """Return how many steps went through `decode_steps` so far."""
    steps = worker.worker.decode_steps
    return 0 if steps is None else steps.num_taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attention", choices=("ours", "theirs"), default="ours")
    parser.add_argument("--steps", choices=("ours", "theirs"), default="ours")
    parser.add_argument("--forced", action="store_true", help="no completion ends early")
    parser.add_argument("--kv", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--extra", type=json.loads, default={}, help="arguments of vLLM's engine")
    parser.add_argument("--profile", action="store_true", help="where the time of the start goes")
    parser.add_argument("--kernels", action="store_true", help="the kernels of a decode step")
    parser.add_argument("--tokens", type=int, default=1024)
    args = parser.parse_args()
    from forgedsl.lower import job as spec
    from forgedsl_runtime.services.vllm.upstream import engine as upstream
    from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

    prepare_environment("gpu")
    if args.attention == "theirs":
        from forgedsl_runtime.services.vllm.upstream import attention_backend

        attention_backend.install = lambda: None
    if args.steps == "theirs":
        from forgedsl_runtime.services.vllm.upstream import worker

        worker.EngineWorker.decode_steps = None
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as temp:
        folder = model_folder(Path(temp) / "m")
        service = spec.VllmService(
            model="m", mesh=spec.Mesh(name="m", device="gpu"), dtype="bf16", gpu_memory=0.35,
            max_running=args.rows, sampling=spec.Sampling(max_tokens=4),
            kv_dtype=args.kv, extra={"load_format": "dummy"} | args.extra,
        )  # fmt: skip
        context = PROMPT + args.tokens + 16
        model = spec.Model(
            source=spec.LocalModel(path="", sha256=""), dtype="bf16", context=context
        )
        engine_rank = upstream.EngineRank(
            rank=0, ranks=1, rendezvous_file=Path(temp) / "rendezvous"
        )
        profile = cProfile.Profile()
        if args.profile:
            profile.enable()
        engine = upstream.Engine(service, model, folder, 1, engine_rank)
        if args.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("cumulative").print_stats(150)
        engine._engine.apply_model(randomized)  # vLLM's dummy weights make all tokens alike
        print(f"started after {time.perf_counter() - begun:.1f} s: {engine.seconds}", flush=True)
        random.seed(0)
        prompts = [
            [random.randrange(10, 150000) for _ in range(PROMPT)]
            for _ in range(args.rows // SIBLINGS)
        ]
        for tokens in (16, args.tokens, args.tokens):
            sampling = spec.Sampling(max_tokens=tokens, min_tokens=tokens if args.forced else 0)
            for i in range(args.rows):
                engine.add(f"{tokens}-{i}", prompts[i // SIBLINGS], sampling, i)
            marks, done = [time.perf_counter()], []
            while engine.num_running:
                done += engine.step()
                marks.append(time.perf_counter())
            steps = [1e3 * (b - a) for a, b in itertools.pairwise(marks)]
            if tokens > 16:
                points = (20, 256, 512, 960)
                at = {k: round(statistics.median(steps[k : k + 40] or [0]), 2) for k in points}
                texts = sorted((one.request_id, one.token_ids) for one in done)
                (taken,) = engine._engine.collective_rpc(steps_taken)
                found = {
                    "seconds": round(marks[-1] - marks[0], 3), "num_steps": len(steps), "ms": at,
                    "num_tokens": sum(len(text) for _, text in texts),
                    "checksum": crc32(repr(texts).encode()), "steps_of_ours_so_far": taken,
                }  # fmt: skip
                print(json.dumps({**vars(args), **found}), flush=True)
        if args.kernels:
            sampling = spec.Sampling(
                max_tokens=args.tokens, min_tokens=args.tokens if args.forced else 0
            )
            for i in range(args.rows):
                engine.add(f"kernels-{i}", prompts[i // SIBLINGS], sampling, i)
            for after, title in ((40, "start"), (args.tokens - 140, "end")):
                for _ in range(after):
                    engine.step()
                print_kernels(engine, title)
            while engine.num_running:
                engine.step()
        worst = []
        for one in done[:: max(1, len(done) // 6)]:
            prompt = prompts[int(one.request_id.split("-")[1]) // SIBLINGS]
            logprobs, _ = engine.score(f"score {one.request_id}", prompt + one.token_ids)
            apart = [abs(a - b) for a, b in zip(logprobs[PROMPT - 1 :], one.logprobs, strict=True)]
            worst.append((max(apart), statistics.fmean(apart)))
        print(
            "log-probs apart: largest",
            max(w for w, _ in worst),
            "mean",
            statistics.fmean(m for _, m in worst),
        )


if __name__ == "__main__":
    main()
