"""Passes on made-up samples before the first step, while engines start.

    losses of the trainer --made-up samples--> forward and backward passes --> gradients discarded
    losses in Python, or none --> the same passes of the model alone
    publications, frozen models --> a forward pass of a short text

The first passes of a process compile and load kernels, which takes many seconds. Engines take
longer to start than a trainer, so the trainer does this meanwhile, and the first publication and
the first step are as fast as the others. Weights, buffers, moments and random states are not
changed. An engine on the same GPU counts its own memory (`vllm/upstream/own_memory.py`), so it
may start while the trainer allocates.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from forgedsl.lower import job as spec
from forgedsl.types.flow import Role
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.routes import Routes, route_dtype
from forgedsl_runtime.services.titan.upstream.experts import sizes_of_experts

SEED = 7
MOST_TOKENS, MOST_LENGTH = 8192, 1024
"""tokens of the samples of a rank, and of one sample"""
OF_VERSIONS = ("behavior", "proximal", "ref")
"""fields with log-probs; made-up ones are those of a uniform distribution"""


def prepare(
    job: spec.Job, name: str, passes: Callable[[], None], probe: Callable[[], object]
) -> dict[str, float]:
    """Spare the first publication and the first step of a trainer what can be done while engines
    start: run `passes`, then compute the `probe` of a publication. Return the seconds by what was
    done; empty if there was nothing to do."""
    seconds: dict[str, float] = {}
    if engines_start(job, name):
        seconds["first passes"] = timed(passes)
        if any(Role.TRANSFERS in node.roles and node.target == name for node in job.nodes):
            seconds["probe"] = timed(probe)
    return seconds


def engines_start(job: spec.Job, name: str) -> bool:
    """Return True if a trainer has GPUs, and engines start meanwhile."""
    return job.services[name].mesh.device != "cpu" and bool(job.samplers)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return round(time.perf_counter() - begin, 1)


def losses_of(job: spec.Job, name: str) -> list[str]:
    """Return the losses of the steps of a trainer, in order; none if a step has a loss in Python,
    which may keep state between calls, or if there are no steps (a Session)."""
    steps = [n for n in job.nodes if Role.UPDATES in n.roles and n.target == name]
    found = list(dict.fromkeys(loss for node in steps for loss, _ in node.terms if loss))
    return [] if any(job.losses[each].python for each in found) else found


def samples_by_loss(
    job: spec.Job, name: str, titan: Any, losses: Mapping[str, LossFunction]
) -> Iterator[tuple[str, list[Sample]]]:
    """Yield each loss of a trainer with made-up samples for it. If its losses are not to be called,
    yield "" once, with samples for the model alone."""
    service = job.services[name]
    assert isinstance(service, spec.TitanService)
    experts = sizes_of_experts(titan.config) if service.router_replay else None
    for each in losses_of(job, name) or [""]:
        yield each, made_up(
            losses[each] if each else None, titan.config.vocab_size,
            seq_len=service.batch.seq_len, rows=service.batch.rows, groups=titan.dp_size,
            experts=experts,
        )  # fmt: skip


def made_up(
    loss: LossFunction | None, vocabulary: int, *, seq_len: int, rows: int, groups: int,
    experts: tuple[int, int, int] | None = None,
) -> list[Sample]:  # fmt: skip
    """Return samples with the fields that a loss reads. They fill about a microbatch for each of
    `groups` groups of ranks, and no more than MOST_TOKENS tokens. The two samples of a pair fit in
    a microbatch. With `experts` (layers, experts of a layer, experts of a token) they have routes,
    since layers that replay routes are compiled separately."""
    draw, numbers = random.Random(SEED), np.random.default_rng(SEED)
    of_pair = rows * seq_len // 2 if loss is not None and loss.paired else seq_len
    length = max(2, min(seq_len, of_pair, MOST_LENGTH))
    count = max(2, min(rows * seq_len, MOST_TOKENS) // length) * groups
    num_prompt = max(1, length // 4)
    new = length - num_prompt
    samples = []
    for _ in range(count - count % 2):  # pairs
        token_ids = [draw.randrange(vocabulary) for _ in range(length)]
        of_tokens = _fields(loss, "T", new, vocabulary, draw) if loss else {}
        whole = _fields(loss, "", 1, vocabulary, draw) if loss else {}
        samples.append(Sample(
            token_ids=token_ids, num_prompt=num_prompt, mask=[True] * new, token_fields=of_tokens,
            sequence_fields={n: v[0] for n, v in whole.items()},
            routes=_routes(*experts, length, numbers) if experts else None,
        ))  # fmt: skip
    return samples


def _routes(
    layers: int, experts: int, active: int, tokens: int, numbers: np.random.Generator
) -> Routes:
    """Return routes [tokens, layers, active] that use all experts about equally often."""
    first = numbers.integers(experts, size=(tokens, layers, 1))
    return ((first + np.arange(active)) % experts).astype(route_dtype(experts))


def _fields(
    loss: LossFunction, axis: str, count: int, vocabulary: int, draw: random.Random
) -> dict[str, list[float]]:
    """Return `count` values of each field with a token axis (`axis` is "T") or without one."""
    found = {}
    for field in loss.fields:
        if field.name in loss.input_names and ("T" in field.axes) == bool(axis):
            middle = -math.log(vocabulary) if field.name in OF_VERSIONS else 0.0
            found[field.name] = [
                float(draw.random() < 0.5) if field.dtype == "bool" else draw.gauss(middle, 0.1)
                for _ in range(count)
            ]
    return found


@contextmanager
def unchanged(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the buffers of a model and the random states at the end."""
    kept = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
