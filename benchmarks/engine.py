"""What the host does for a sampled token, beside the model: vLLM's way and ours, in one engine.

    requests --Engine--> scheduler --> executor (not counted) --> scheduler --> completions

    python benchmarks/engine.py [--requests 128 256] [--tokens 200] [--prompt 32] [--rounds 3]

The engine is the actor's own, with the starting model, on CPU or on the GPU where there is one.
Both ways take turns; microseconds are CPU time of the engine's thread over all tokens, the least of
the rounds. `vllm` adds the same requests through LLMEngine: vLLM's scheduler code for every step,
and its output processor for every token.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

MODEL = Path(__file__).parents[1] / "pipelines" / "models" / "tiny_math"
PARTS = ("executor", "schedule", "update", "outputs")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[128, 256])
    for name, default in (("tokens", 200), ("prompt", 32), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


class Clock:
    """CPU seconds of this thread in the parts of a step."""

    def __init__(self, engine: upstream.Engine) -> None:
        self.seconds: Counter[str] = Counter()
        inner: Any = engine._engine
        core = inner.engine_core.engine_core
        for owner, method, part in (
            (core.model_executor, "execute_model", "executor"),
            (core.model_executor, "sample_tokens", "executor"),
            (core.scheduler, "schedule", "schedule"),
            (core.scheduler, "update_from_output", "update"),
            (inner.output_processor, "process_outputs", "outputs"),
        ):
            setattr(owner, method, partial(self.timed, getattr(owner, method), part))

    def timed(self, call: Callable[..., Any], part: str, *args: Any, **kwargs: Any) -> Any:
        before = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            self.seconds[part] += time.thread_time() - before


def engine(context: int, running: int, folder: Path) -> upstream.Engine:
    import torch

    device = "gpu" if torch.cuda.is_available() else "cpu"
    prepare_environment(device)
    service = spec.VllmService(
        model="m", mesh=spec.Mesh(name="m", device=device), dtype="f32", max_running=running,
        sampling=spec.Sampling(max_tokens=4),
    )  # fmt: skip
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=context)
    engine_rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    return upstream.Engine(service, model, folder / "m", 1, engine_rank)


def add_to_vllm(own: upstream.Engine, name: str, prompt: list[int], tokens: int, seed: int) -> None:
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=tokens, min_tokens=tokens, logprobs=0, flat_logprobs=True, detokenize=False,
        seed=seed, output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    own._engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), params)


def sampled(own: upstream.Engine, clock: Clock, way: str, count: int, args: Any) -> dict[str, Any]:
    """Microseconds of one round, a token."""
    sampling = spec.Sampling(max_tokens=args.tokens, min_tokens=args.tokens)
    for i in range(count):
        prompt = [3 + (i * 7 + at) % 20 for at in range(args.prompt)]
        if way == "ours":
            own.add(f"r{i}", prompt, sampling, i)
        else:
            add_to_vllm(own, f"r{i}", prompt, args.tokens, i)
    clock.seconds.clear()
    before, tokens = time.thread_time(), 0
    while own.num_running:
        tokens += sum(len(done.token_ids) for done in own.step())
    whole = time.thread_time() - before
    assert tokens == count * args.tokens, (tokens, count * args.tokens)
    micro = {part: 1e6 * clock.seconds[part] / tokens for part in PARTS}
    host = 1e6 * whole / tokens - micro["executor"]
    return {"host": host, **micro, "rest": host - sum(micro[part] for part in PARTS[1:])}


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as temp:
        shutil.copytree(MODEL, Path(temp) / "m")
        own = engine(args.prompt + args.tokens + 1, max(args.requests), Path(temp))
        clock = Clock(own)
        for count in args.requests:
            rounds: dict[str, list[dict[str, Any]]] = {"vllm": [], "ours": []}
            for _ in range(args.rounds):
                for way, found in rounds.items():
                    found.append(sampled(own, clock, way, count, args))
            for way, found in rounds.items():
                best = min(found, key=lambda one: one["host"])
                row = {key: round(value, 2) for key, value in best.items()}
                print(json.dumps({"requests": count, "way": way, "us_per_token": row}), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
