"""Passes on made-up samples before the first step, while engines start.

    losses of the trainer --made-up samples--> forward and backward passes --> gradients discarded
    a trainer without such passes --> kernels of attention compiled, and not run

The first passes of a process compile and load kernels, which takes many seconds. Engines take
longer to start than a trainer, so a trainer with GPUs of its own does this meanwhile, and the first
step is as fast as the others. Weights, buffers, moments and random states are not changed.

A trainer that shares its GPU must not allocate memory on it while an engine starts. It only
compiles the kernels of attention, which takes the host alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from forgedsl.lower import job as spec
from forgedsl.types.flow import Role
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.services.titan.upstream import flash_attention
from forgedsl_runtime.services.titan.upstream.attention import newest_shapes
from forgedsl_runtime.services.titan.upstream.model import DTYPES

SEED = 7
MOST_TOKENS, MOST_LENGTH = 8192, 1024
"""tokens of the samples of a rank, and of one sample"""
OF_VERSIONS = ("behavior", "proximal", "ref")
"""fields with log-probs; made-up ones are those of a uniform distribution"""


def prepare(job: spec.Job, name: str, titan: Any, passes: Callable[[], None]) -> dict[str, float]:
    """Spare the first step of a trainer what can be done while engines start: run `passes`, or
    compile kernels. Return the seconds that it took, by its name; empty if there is nothing to do.
    """
    begin = time.perf_counter()
    if saves_time(job, name) and losses_of(job, name):
        passes()
        done = "first passes"
    elif _engines_start(job, name) and _compile_attention(titan, job.services[name]):
        done = "attention kernels"
    else:
        return {}
    return {done: round(time.perf_counter() - begin, 1)}


def _engines_start(job: spec.Job, name: str) -> bool:
    """True if the trainer has GPUs, and engines start meanwhile."""
    return job.services[name].mesh.device != "cpu" and bool(job.samplers)


def _compile_attention(titan: Any, service: spec.Service) -> bool:
    """Compile the kernels of the model's attention without memory of the GPU. Return False if it
    uses none that have to be compiled."""
    assert isinstance(service, spec.TitanService)
    dtype = DTYPES[service.dtype]
    shapes = newest_shapes(titan.model, dtype, service.parallel)
    for heads, key_heads, width in sorted(shapes):
        flash_attention.compile_ahead(
            heads, key_heads, width, dtype,
            seq_len=service.batch.seq_len, rows=service.batch.rows,
        )  # fmt: skip
    return bool(shapes)


def losses_of(job: spec.Job, name: str) -> list[str]:
    """Return the losses of the steps of a trainer, in order; none if a step has a loss in Python,
    which may keep state between calls."""
    steps = [n for n in job.nodes if Role.UPDATES in n.roles and n.target == name]
    found = list(dict.fromkeys(loss for node in steps for loss, _ in node.terms if loss))
    return [] if any(job.losses[each].python for each in found) else found


def saves_time(job: spec.Job, name: str) -> bool:
    """True if the passes delay nothing: engines start meanwhile, and no other service has one of
    the trainer's GPUs. An engine measures free memory when it starts, so it must not see the memory
    of a trainer change."""
    service = job.services[name]
    if not _engines_start(job, name):
        return False
    others = (each for other, each in job.with_processes.items() if other != name)
    taken = {gpu for other in others for gpu in _gpus(other)}
    return not taken & set(_gpus(service))


def _gpus(service: spec.Service) -> list[tuple[int, int]]:
    """Return the GPUs of all replicas of a service, as (host, GPU)."""
    return [(place.host, gpu) for place in service.mesh.places for gpu in place.gpus]


def samples_by_loss(
    job: spec.Job, name: str, titan: Any, losses: Mapping[str, LossFunction]
) -> Iterator[tuple[str, list[Sample]]]:
    """Yield each loss of a trainer with made-up samples for it."""
    service = job.services[name]
    assert isinstance(service, spec.TitanService)
    for each in losses_of(job, name):
        yield each, made_up(
            losses[each], titan.config.vocab_size, seq_len=service.batch.seq_len,
            rows=service.batch.rows, groups=titan.dp_size,
        )  # fmt: skip


def made_up(
    loss: LossFunction, vocabulary: int, *, seq_len: int, rows: int, groups: int
) -> list[Sample]:
    """Return samples with the fields that a loss reads. They fill about a microbatch for each of
    `groups` groups of ranks, and no more than MOST_TOKENS tokens."""
    draw = random.Random(SEED)
    length = max(2, min(seq_len, MOST_LENGTH))
    count = max(2, min(rows * seq_len, MOST_TOKENS) // length) * groups
    num_prompt = max(1, length // 4)
    new = length - num_prompt
    return [
        Sample(
            token_ids=[draw.randrange(vocabulary) for _ in range(length)],
            num_prompt=num_prompt,
            mask=[True] * new,
            token_fields=_fields(loss, "T", new, vocabulary, draw),
            sequence_fields={n: v[0] for n, v in _fields(loss, "", 1, vocabulary, draw).items()},
        )
        for _ in range(count - count % 2)  # pairs
    ]


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
