"""A test fixture: the events of a made-up run, in the shape the controller and launch emit them.

Nothing here trains. The curves are drawn from a seeded formula so that readers and the report have
something to show; no figure of it appears outside the tests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from forgedsl.lower import job as spec

BEGIN = 1_790_000_000.0
SAMPLER = "file.forge:39:1"


def make_job(*, steps: int = 120, rewards: bool = True, **logging: Any) -> spec.Job:
    """A small job of the usual shape."""
    mesh = spec.Mesh(name="trainer", device="cpu")
    titan = spec.TitanService(
        model="policy", mesh=mesh, dtype="f32", optimizer=spec.Optimizer(lr=2e-4),
        batch=spec.BatchShape(seq_len=64, rows=256),
    )  # fmt: skip
    vllm = spec.VllmService(
        model="policy", mesh=spec.Mesh(name="gen", device="cpu"), dtype="f32",
        sampling=spec.Sampling(max_tokens=16),
    )  # fmt: skip
    frozen = titan.model_copy(
        update={"optimizer": None, "mesh": spec.Mesh(name="ref", device="cpu")}
    )
    return spec.Job(
        compiler="0.1.0", name="example", seed=17, profile="cpu",
        summary=("trains policy on arithmetic with the loss clipped", "one host, 3 processes"),
        params={"group": 8, "eps": 0.2},
        models={"policy": spec.Model(source=spec.RandomModel(seed=1), dtype="f32", context=256)},
        datasets={}, services={"trainer": titan, "generator": vllm, "reference": frozen},
        rewards={}, rubrics={},
        losses={"clipped": spec.Loss(name="clipped", source="def loss(x): ...\n", tree="(mul r a)",
                                     fields=(), reports=("clip_frac", "kl_ref"))},
        program="", nodes=make_nodes() if rewards else (),
        schedule=spec.Schedule(mode="async", steps=steps, prompts=32, credits=64, age_bound=2),
        evals={}, checkpoint=spec.Checkpoint(),
        logging=spec.Logging(**{"tensorboard": False} | logging),
        launcher=spec.Launcher(), origins={"generator": SAMPLER},
        topology="prompt -> rollout -> batch",
    ).sealed()  # fmt: skip


def make_nodes() -> tuple[spec.Node, ...]:
    def node(name: str, op: Any, target: str, *edges: str, **more: Any) -> spec.Node:
        inputs = tuple(spec.Input(argument=edge, edge=edge) for edge in edges)
        return spec.Node(
            id=name, name=name, op=op, target=target, inputs=inputs, level="group", origin="",
            **more,
        )  # fmt: skip

    return (
        node("prompt", "draw", "problems", count=32),
        node("rollout", "sample", "generator", "prompt", n=8),
        node("ref_lp", "logprobs", "reference", "rollout"),
        node("score", "score", "right_answer", "rollout", "prompt"),
        node("adv", "call", "group_norm", "score"),
        node("batch", "replay", "", "rollout", "ref_lp", "adv"),
        node("step", "step", "trainer", "batch", loss="clipped"),
        node("sync", "sync", "trainer", to="generator"),
    )


def make_events(job: spec.Job, *, steps: int | None = None) -> Iterator[dict[str, Any]]:
    """The events of the first `steps` steps, in order of time; all of them end with run.end."""
    rng = random.Random(5)
    total = steps if steps is not None else job.schedule.steps or 0
    events = [*_start(job), *_steps(rng, total), *_samples(rng, total)]
    last = max(event["time"] for event in events) + 0.5
    if total == job.schedule.steps:
        events.append({"time": last, "kind": "run.end", "code": 0, "status": "done", "message": ""})
    yield from sorted(events, key=lambda event: event["time"])


def _start(job: spec.Job) -> Iterator[dict[str, Any]]:
    yield {
        "time": BEGIN, "kind": "run.start", "name": job.name, "steps": job.schedule.steps,
        "resumed_from": None, "recorded": 0,
    }  # fmt: skip
    services = list(job.services)
    yield {"time": BEGIN + 0.1, "kind": "phase", "text": "starting services", "services": services}
    for i, name in enumerate(services):
        yield {
            "time": BEGIN + 3 + 2 * i, "kind": "service.ready", "service": name, "mesh": name,
            "seconds": 3.0 + 2 * i, "facts": {},
        }  # fmt: skip
        yield {
            "time": BEGIN + 3 + 2 * i, "kind": "process.start", "service": name, "mesh": name,
            "rank": 0, "pid": 4000 + i, "actor": name.title(),
            "versions": {"torch": "2.13.0", "vllm": "0.32.0"}, "classes": {"model": "torchtitan.M"},
        }  # fmt: skip


def _steps(rng: random.Random, total: int) -> Iterator[dict[str, Any]]:
    now = BEGIN + 8.0
    for step in range(1, total + 1):
        wait, train = 0.05 + 0.03 * rng.random(), 0.12 + 0.05 * rng.random()
        reward = 0.55 + 0.38 * (1 - math.exp(-step / 40)) + rng.gauss(0, 0.02)
        start, end = now + wait, now + wait + train
        if step % 50 == 1:
            yield from _eval(step - 1, start - 0.02, 0.52 + 0.4 * (1 - math.exp(-step / 40)))
        yield {"time": start, "kind": "step.start", "id": step, "step": step, "version": step - 1}
        examples = [_example(rng, step, score) for score in (1.0, 0.4, 0.0)]
        yield {
            "time": end, "kind": "step.end", "id": step, "step": step, "version": step,
            "seconds": train, "examples": examples, "loss": 0.0,
        }  # fmt: skip
        yield _metrics(rng, step, reward, end, wait + train, train)
        yield {"time": end, "kind": "sync.start", "id": 90000 + step, "version": step}
        yield {
            "time": end + 0.012, "kind": "sync.end", "id": 90000 + step, "version": step,
            "seconds": 0.012,
        }  # fmt: skip
        now = end
    if total:
        yield {
            "time": now, "kind": "checkpoint.saved", "step": total, "path": "checkpoints/step",
            "seconds": 0.1,
        }  # fmt: skip


def _metrics(
    rng: random.Random, step: int, reward: float, time: float, step_s: float, train_s: float
) -> dict[str, Any]:
    return {
        "time": time, "kind": "metrics", "step": step, "policy_version": step,
        "reward_mean": reward, "reward_std": 0.5 * (1 - reward) ** 0.5,
        "loss": 0.03 * math.exp(-step / 60) + rng.gauss(0, 0.004),
        "grad_norm": 0.4 + 0.1 * rng.random(), "entropy": 0.9 * math.exp(-step / 80) + 0.1,
        "tokens": 3100 + rng.randrange(200), "tokens_per_s": 3200 / step_s,
        "age_max": rng.choice((1, 1, 2)), "age_mean": 0.8 + 0.2 * rng.random(),
        "step_s": step_s, "trainer_idle_s": step_s - train_s, "sampler_idle_s": 0.02,
        "wall_s": time - BEGIN, "lr": 2e-4,
        "loss/clip_frac": 0.02 * rng.random(), "loss/kl_ref": 0.001 * step * rng.random(),
    }  # fmt: skip


def _example(rng: random.Random, step: int, score: float) -> dict[str, Any]:
    a, b = rng.randrange(10, 99), rng.randrange(10, 99)
    response = str(a + b) if score == 1.0 else str(a + b - 10)
    return {
        "prompt": f"{a}+{b}=", "response": response, "target": str(a + b), "score": score,
        "version": step - 1,
    }  # fmt: skip


def _eval(step: int, time: float, value: float) -> Iterator[dict[str, Any]]:
    shared = {"id": 80000 + step, "name": "held_out", "step": step, "version": step}
    yield {"time": time, "kind": "eval.start", **shared}
    yield {"time": time + 0.4, "kind": "eval.end", **shared, "value": value, "seconds": 0.4}


def _samples(rng: random.Random, total: int) -> Iterator[dict[str, Any]]:
    """256 completions a step, sampled while the step before trains."""
    ident = 100_000
    for step in range(1, total + 1):
        base = BEGIN + 7.8 + 0.21 * (step - 1)
        for _ in range(64):
            ident += 1
            start = base + 0.1 * rng.random()
            end = start + 0.05 + 0.08 * rng.random()
            yield {"time": start, "kind": "sample.start", "id": ident, "service": "generator"}
            yield {
                "time": end,
                "kind": "sample.end",
                "id": ident,
                "tokens": 4,
                "seconds": end - start,
            }
