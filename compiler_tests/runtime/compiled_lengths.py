"""Counts how often a trainer's layers are compiled: in the passes before the first step, in the
probe, and in steps whose samples have other lengths.

Layers run on the CPU with the attention of GPUs, whose kernels are replaced by sums: they compile
as they do there. Prints the counts as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from forgedsl.lower import job as spec
from forgedsl_runtime.actors.abandon_step import AbandonStep
from forgedsl_runtime.data_types import Batch
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.models import resolve_model
from forgedsl_runtime.rendezvous import rendezvous_store
from forgedsl_runtime.services.titan import warm_up
from forgedsl_runtime.services.titan.actor import TitanTrainer
from forgedsl_runtime.services.titan.upstream import arch, attention, experts, flash_attention


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, scale: float | None
) -> tuple[Tensor, Tensor]:
    shared = q.shape[1] // k.shape[1]
    return q + v.repeat_interleave(shared, 1), torch.zeros(q.shape[1], q.shape[0])


def _differentiate(
    push: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return push.clone(), torch.zeros_like(k), torch.ones_like(v)


COMPILE = torch.nn.Module.compile


def _traced(module: torch.nn.Module, *, backend: Any, fullgraph: bool) -> None:
    """Compile a module up to the point where kernels would be written."""
    COMPILE(module, backend="aot_eager", fullgraph=fullgraph)


class FlatTrainer(TitanTrainer):
    """A trainer on the CPU that packs samples as on a GPU."""

    def _build(self) -> None:
        super()._build()
        self.titan.flat = True


def _trainer(job: spec.Job, folder: Path) -> Any:
    actor = FlatTrainer.__new__(FlatTrainer)
    store = rendezvous_store()
    actor._abandon, actor._known = AbandonStep(), set()
    actor.rank, actor.job, actor.name, actor.service = 0, job, "trainer", job.services["trainer"]
    actor.model_spec, actor.world = job.models["policy"], 1
    actor.folder = resolve_model(job, "policy", folder, folder)
    actor._rendezvous, actor._threads = (store.host, store.port), 1
    actor._setup(folder, f"lengths-{store.port}", None)
    return actor


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def main(text: str) -> None:
    job = spec.Job.model_validate_json(text)
    flash_attention.packed_attention.register_kernel("cpu")(_attend)
    flash_attention._backward.register_kernel("cpu")(_differentiate)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(flash_attention, "installed", lambda: True),
        patch.object(flash_attention, "kernels", lambda: None),
        patch.object(arch, "masked_attention", attention.packed_attention),
        patch.object(warm_up, "engines_start", lambda job, name: True),
        patch.object(torch.nn.Module, "compile", _traced),
    ):
        actor = _trainer(job, Path(folder))
        counts = [_graphs()]
        actor._probe()
        counts.append(_graphs())
        loss = LossFunction.from_job(job.losses["recorded"])
        for longest, rows in ((30, 3), (17, 9), (60, 2)):
            samples = warm_up.made_up(
                loss, 40, seq_len=longest, rows=rows, groups=1,
                experts=experts.sizes_of_experts(actor.titan.config),
            )  # fmt: skip
            actor._step(Batch(samples=samples), "recorded")
            counts.append(_graphs())
    print("COUNTS" + json.dumps(counts), flush=True)
    os._exit(0)  # monarch's and torch's threads would be waited for


if __name__ == "__main__":
    main(sys.stdin.read())
