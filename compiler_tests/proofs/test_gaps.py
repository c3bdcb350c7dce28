"""The gap of trainer and sampler: what is compared, what it says, when it stops a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.lower.job import Node
from forgedsl_runtime.data_types import Batch, Sample, StepResult
from forgedsl_runtime.endpoints import SyncResult
from forgedsl_runtime.guards import GapGuard, GuardError
from forgedsl_runtime.proofs.gaps import FEW, Compared, chosen, gaps
from forgedsl_runtime.proofs.watch import Proofs


def sample(behavior: list[float], mask: list[bool] | None = None) -> Sample:
    count = len(behavior)
    return Sample(
        token_ids=[0] * (count + 1), num_prompt=1, mask=mask or [True] * count,
        token_fields={"behavior": behavior},
    )  # fmt: skip


def batch(*ages: int | None) -> Batch:
    return Batch(samples=[sample([-1.0 - i]) for i in range(len(ages))], sample_ages=list(ages))


def test_youngest_and_oldest_are_compared() -> None:
    found = chosen(batch(0, 1, 2, 0, None))
    assert [each.age for each in found] == [0, 0, 2]


def test_a_few_of_each_are_enough_and_spread_over_the_batch() -> None:
    many = batch(*[0] * 100)
    found = [each.sample.token_fields["behavior"][0] for each in chosen(many)]
    assert found == [-1.0, -26.0, -51.0, -76.0]
    assert len(found) == FEW


def test_what_was_not_sampled_is_not_compared() -> None:
    written = batch(0)
    written.samples[0].token_fields.clear()
    assert chosen(written) == []
    assert chosen(batch(None)) == []
    assert gaps([], []) == {}


def test_tokens_that_the_mask_leaves_out_do_not_count() -> None:
    one = sample([-1.0, -2.0, 0.0], [True, True, False])
    found = gaps([Compared(0, one, 0)], [[-1.5, -2.1]])
    assert found == pytest.approx({"gap/age_0": 0.3, "gap/age_0_max": 0.5})


def test_each_age_has_its_own() -> None:
    found = gaps([Compared(0, sample([-1.0]), 0), Compared(1, sample([-1.0]), 3)], [[-1.0], [-3.0]])
    assert found == {"gap/age_0": 0.0, "gap/age_0_max": 0.0, "gap/age_3": 2.0, "gap/age_3_max": 2.0}


# ---- the guard


def node(op: str = "step") -> Node:
    return Node(
        id=op, name=op, op=op, target="trainer", to="generator", level="batch", origin="f.forge:3"
    )


def test_a_gap_that_stays_is_no_news() -> None:
    guard = GapGuard("bf16")
    assert [guard.check(node(), 0.02 * (1 + i % 3), proved=True) for i in range(50)] == [""] * 50


@pytest.mark.parametrize(
    ("proved", "side"), [(True, "kernels or settings"), (False, "were not verified")]
)
def test_a_gap_that_grows_is_told_once_and_says_which_side(proved: bool, side: str) -> None:
    guard = GapGuard("bf16")
    said = [guard.check(node(), gap, proved=proved) for gap in (0.02, 0.3, 0.3, 0.02, 0.3)]
    assert [bool(text) for text in said] == [False, True, False, False, True]
    assert side in said[1]


def test_a_gap_without_measure_stops_the_run() -> None:
    guard = GapGuard("f32")
    guard.check(node(), 1e-6, proved=True)
    assert guard.check(node(), 7e-4, proved=True) == ""  # below what f32 may be off by
    with pytest.raises(GuardError, match="log-probs of trainer and of the sampler differ"):
        guard.check(node(), 0.5, proved=True)


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_a_step_without_a_gap_says_nothing(gap: float | None) -> None:
    guard = GapGuard("f32")
    assert guard.check(node(), gap, proved=True) == ""


# ---- the evidence


def test_the_run_leaves_its_evidence(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(samplers={}, trainers={}, proofs=SimpleNamespace(off={}))
    proofs = Proofs(job)
    for changed in (None, 0.5, 0.25):
        result = SyncResult(
            bytes=8, transport="shm", seconds=0.1, proved=35, changed=changed,
            was_random=changed is None,
        )  # fmt: skip
        proofs.record_sync(node("sync"), result)
    step = StepResult(
        version=1, loss=0.0, grad_norm=1.0, lr=1e-6, tokens=8, metrics={}, kernel="",
        gaps={"gap/age_0": 1e-6},
    )  # fmt: skip
    proofs.record_step(node(), step)
    proofs.write(tmp_path)
    start, syncs, gap = map(json.loads, (tmp_path / "proofs.jsonl").read_text("utf-8").splitlines())
    assert start == {"proof": "start", "service": "generator", "tensors": 35, "holds": True}
    assert (syncs["syncs"], syncs["proved"], syncs["tensors"]) == (3, 3, 35)
    assert syncs["least_changed"] == 0.25
    assert (gap["steps"], gap["largest_mean"]) == (1, 1e-6)
