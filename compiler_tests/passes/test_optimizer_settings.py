"""Settings of optimizers: what a kind does not read is refused, and what it keeps is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forge_texts import GRPO, changed, lower_of

BAD = [
    ("momentum = 0.9", "`optimizer.momentum` has no effect with `kind = adamw`"),
    ("kind = sgd, momentum = 0.9, eps = 1e-6", "`optimizer.eps` has no effect with `kind = sgd`"),
    ("kind = sgd, adjust_lr = original", "`optimizer.adjust_lr` has no effect with `kind = sgd`"),
    ("kind = sgd, nesterov = true", "`optimizer.nesterov` has no effect without momentum"),
    (
        "kind = muon, precision = bf16_moments",
        ("`precision = bf16_moments` is supported only for adamw and adam, not for `muon`"),
    ),
]
GOOD = [
    "kind = muon, momentum = 0.9, nesterov = false, ns_steps = 6, adjust_lr = original, eps = 1e-6",
    "kind = sgd, momentum = 0.9, nesterov = true",
    "kind = sgd",
    "kind = muon, precision = bf16",
]


HERE = Path(__file__).parent


def found_of(settings: str, *overrides: str) -> Any:
    """What GRPO with these settings of an optimizer is lowered to, and its errors."""
    text = changed(GRPO, ("procs = 4,", f"procs = 4, optimizer {{ {settings} }},"))
    found, diagnostics = lower_of(text, *overrides, folder=HERE)
    return found, [(d.code, d.message) for d in diagnostics if d.severity == "error"]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_what_a_kind_does_not_read_is_refused(settings: str, message: str) -> None:
    assert found_of(settings)[1] == [("F113", message)]


def test_muon_of_offloaded_weights_is_refused() -> None:
    found = found_of("kind = muon", "trainer.memory.offload=true")[1]
    assert [code for code, _ in found] == ["F113"]


@pytest.mark.parametrize("settings", GOOD)
def test_what_it_reads_is_in_the_job(settings: str) -> None:
    found, errors = found_of(settings)
    assert not errors
    opt = found.job.trainers["trainer"].optimizer
    assert opt is not None
    assert opt.momentum == (0.9 if "0.9" in settings else 0.95 if opt.kind == "muon" else 0.0)
    assert opt.nesterov == ("nesterov = true" in settings or settings == GOOD[3])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("adamw", "AdamW moments f32"),
        ("muon", "momentum, AdamW moments f32"),
        ("sgd, momentum = 0.9", "momentum f32"),
        ("sgd", None),
    ],
)
def test_the_plan_counts_what_is_kept(kind: str, name: str | None) -> None:
    found, errors = found_of(f"kind = {kind}")
    assert not errors
    rank = found.plan.memory.rank("trainer")
    assert rank is not None
    items = {item.name: item.bytes for item in rank.phases[-1].items}
    kept = [item for item in items if "moment" in item]
    assert kept == ([name] if name else [])
    if name:
        weights = items["weights f32"]
        share = items[name] / weights
        assert share == pytest.approx({"adamw": 2.0, "sgd, momentum = 0.9": 1.0}.get(kind, 1.18),
                                      abs=0.01)  # fmt: skip
