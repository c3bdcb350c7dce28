"""Samples the same requests the short way and through LLMEngine, in one engine; prints both.

Run by test_engine_paths: vLLM takes a process for itself. The model is the starting model, the
blocks are few, so that requests are preempted too.
"""

import dataclasses
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from forgedsl.lower import job as spec
from forgedsl_runtime.services.vllm.upstream import engine as upstream
from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

CONTEXT = 96
PROMPTS = [[3 + (7 * i + at) % 20 for at in range(3 + i % 5)] for i in range(24)]


def engine(folder: Path, **changed: Any) -> upstream.Engine:
    """An engine with few blocks; `changed` are other settings of the service."""
    prepare_environment("cpu")
    service = spec.VllmService(
        model="m", mesh=spec.Mesh(name="m", device="cpu"), dtype="f32", max_running=16,
        sampling=spec.Sampling(max_tokens=4), prefix_caching=True,
        extra={"block_size": 32, "num_gpu_blocks_override": 26}, **changed,
    )  # fmt: skip
    model = spec.Model(source=spec.LocalModel(path="", sha256=""), dtype="f32", context=CONTEXT)
    engine_rank = upstream.EngineRank(rank=0, ranks=1, rendezvous_file=folder / "rendezvous")
    return upstream.Engine(service, model, folder, 1, engine_rank)


def started(folder: Path) -> upstream.Engine:
    """An engine whose start finds nothing in vLLM's cache, and may start no process."""
    os.environ["VLLM_CACHE_ROOT"] = str(folder.parent / "vllm_cache")
    prepare_environment("cpu")
    from vllm.model_executor.models import registry

    registry.subprocess = None  # type: ignore[assignment]
    return engine(folder)


class Played:
    """One engine and what it has given; `act` is called before each step with its number."""

    def __init__(self, own: upstream.Engine, weights: list[tuple[str, Any]]) -> None:
        self.own, self.weights = own, weights

    def add(self, count: int = 24, **changed: Any) -> None:
        sampling = spec.Sampling(**({"max_tokens": 40} | changed))
        for i in range(count):
            self.own.add(f"{len(self.names)}", PROMPTS[i], sampling, i)
            self.names.append(i)

    def play(self, act: Callable[["Played", int], None]) -> dict[str, Any]:
        own, done, step = self.own, [], 0
        self.names: list[int] = []
        self.scores: list[list[float]] = []
        self.progress: list[dict[str, int]] = []
        own.load_weights(self.weights, keep=False)
        while step < 12 or own.num_running:
            act(self, step)
            done += own.step()
            if step == 6 and act is probed:
                scores, others = own.score("probe", PROMPTS[0] + PROMPTS[1])
                self.scores.append(scores)
                done += others
            step += 1
        found = {
            d.request_id: [*dataclasses.astuple(d)[1:3], own.texts([d])[0], d.truncated]
            for d in done
        }
        return {"given": found, "scores": self.scores, "progress": self.progress}


def plain(played: Played, step: int) -> None:
    if step == 0:
        played.add()
        played.add(12, min_tokens=30, max_tokens=60)
        played.add(2, max_tokens=200, min_tokens=95)
        played.add(4, temperature=0.0)
    if step == 9:
        played.add(4, temperature=0.7, top_p=0.9, top_k=12)


def watched(played: Played, step: int) -> None:
    if step == 0:
        played.add(2, min_tokens=20, stop=("never said",))
    if step in (0, 5):
        played.add(8)
        played.add(4, stop=("1",))
    if step == 4:
        played.progress.append(played.own.progress(keep=True))


def swapped(played: Played, step: int) -> None:
    if step == 0:
        played.add(12, min_tokens=40)
    if step in (5, 20):
        played.progress.append(played.own.progress(keep=False))
        scaled = [(name, tensor * (1 + 0.003 * step)) for name, tensor in played.weights]
        played.own.load_weights(scaled, keep=step == 5)


def probed(played: Played, step: int) -> None:
    if step == 0:
        played.add(8, min_tokens=20)


def aborted(played: Played, step: int) -> None:
    if step == 0:
        played.add(6, min_tokens=20)
        played.add(3, min_tokens=20, stop=("never said",))
        played.add(12, min_tokens=20)  # more than run at a time
    if step == 5:
        played.own.abort(["1", "4", "7", "20", "unknown"])


def through_vllm(own: upstream.Engine) -> None:
    """From now on requests are added as LLMEngine adds them."""
    core, processor = own._core, own._engine.output_processor
    add = core.add_request

    def both(request: Any) -> None:
        if request.request_id not in processor.request_states:
            processor.add_request(request, None, None, 0)
        add(request)

    core.add_request = both
    own._scheduler.follow = lambda *_: None  # type: ignore[method-assign]


def grown(own: upstream.Engine, lengths: range) -> float:
    """MiB of its own that the process has more, after prompts of these lengths alone."""
    process = psutil.Process()
    before = process.memory_full_info().uss
    for length in lengths:
        prompt = random.Random(length).choices(range(3, 23), k=length)
        own.add("alone", prompt, spec.Sampling(max_tokens=1), 1)
        while own.num_running:
            own.step()
    return float(process.memory_full_info().uss - before) / 2**20


ACTS = (plain, watched, swapped, probed, aborted)


def main() -> None:
    from safetensors.torch import load_file

    folder = Path(sys.argv[1])
    own = started(folder)
    played = Played(own, list(load_file(folder / "model.safetensors").items()))
    ways: dict[str, Any] = {"seconds": own.seconds}
    ways["grown"] = [grown(own, range(4, 64)), grown(own, range(64, 94))]
    for way in ("ours", "theirs"):
        if way == "theirs":
            through_vllm(own)
        before = own._scheduler.num_short
        ways[way] = {act.__name__: played.play(act) for act in ACTS}
        ways[way + " short"] = own._scheduler.num_short - before
    for name in ("before", "after"):
        own.add(name, PROMPTS[0], spec.Sampling(max_tokens=4), 1)
        own.load_weights(played.weights, keep=True)
    ways["salts"] = [request.cache_salt for request in own._scheduler.requests.values()]
    print("RESULT" + json.dumps(ways))


if __name__ == "__main__":
    main()
