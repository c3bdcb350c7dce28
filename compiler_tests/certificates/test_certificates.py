"""Our losses give the numbers that the code of TRL, verl and torchtitan gave: goldens/*.json.

The goldens are made by theirs.py, with that code; this module needs none of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from certificate_cases import CASES, Case, text_of
from certificate_page import page
from torch import Tensor

import forgedsl

GOLDENS = Path(__file__).parent / "goldens"
PAGE = Path(__file__).parents[2] / "docs" / "certificates.md"
TOLERANCE = 1e-6
MADE = {
    project: json.loads((GOLDENS / f"{project}.json").read_text("utf-8"))
    for project in ("trl", "verl", "torchtitan")
}
WRITTEN = [case for case in CASES if case.source]
DIFFERENT = [case for case in WRITTEN if case.differs]
STATISTICS = ("logprob", "entropy", "value")
VALUES = {"f64": torch.float64, "f32": torch.float32}


def named(case: Case) -> str:
    return f"{case.project}: {case.theirs} = {case.library or case.source.split()[0]}"


def golden(case: Case) -> dict[str, Any]:
    """What their code gave for the options of a case."""
    (found,) = (
        each for each in MADE[case.project]["losses"]
        if (each["theirs"], each["options"]) == (case.theirs, dict(case.options))
    )  # fmt: skip
    return found


def batch(dtype: torch.dtype) -> dict[str, Tensor]:
    found = json.loads((GOLDENS / "batch.json").read_text("utf-8"))
    mask = torch.tensor(found.pop("mask"))
    lengths = mask.sum(1, keepdim=True)
    last = torch.arange(mask.shape[1]) == lengths - 1
    return {name: torch.tensor(values, dtype=dtype) for name, values in found.items()} | {
        "mask": mask,
        "last": last,
    }


def ours(source: str, params: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, dict[str, Any]]:
    """The value of a loss, and its gradients."""
    name = "own" if "minimize" in source else None
    loss = forgedsl.compile_loss(source, name, params=params)
    given = batch(dtype)
    statistics = {name: given[name] for name in {f.name for f in loss.fields if f.diff}}
    inputs = {n: given[n] for n in loss.input_names if n not in statistics}
    labels = torch.zeros_like(given["mask"], dtype=torch.int64)
    value, _, gradients = loss.at_statistics(
        statistics, labels=labels, mask=given["mask"], **inputs
    )
    return value, gradients


def apart(value: Tensor, gradients: dict[str, Tensor], case: Case) -> dict[str, float]:
    """Largest distance of the value and of each gradient, as a part of the largest number of
    theirs, or of 1."""
    theirs = golden(case)
    found = {"value": abs(float(value) - theirs["value"]) / max(1.0, abs(theirs["value"]))}
    for name in sorted({*gradients, *theirs["gradients"]}):
        given = theirs["gradients"].get(name)
        wanted = torch.zeros(()) if given is None else torch.tensor(given, dtype=torch.float64)
        mine = gradients.get(name, torch.zeros(())).double()
        scale = max(1.0, float(wanted.abs().max()))
        found[name] = float((mine - wanted).abs().max()) / scale
    return found


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("case", WRITTEN, ids=named)
def test_value_and_gradient_are_theirs(case: Case, dtype: str) -> None:
    found = apart(*ours(text_of(case), dict(case.params), VALUES[dtype]), case)
    assert {name: far for name, far in found.items() if far > TOLERANCE} == {}


@pytest.mark.parametrize("case", DIFFERENT, ids=named)
def test_what_is_said_to_differ_differs(case: Case) -> None:
    found = apart(*ours(case.library, dict(case.library_params), torch.float64), case)
    assert max(found.values()) > 1e3 * TOLERANCE


def test_every_case_says_what_it_is() -> None:
    silent = [case.theirs for case in CASES if not (case.source or case.why)]
    assert silent == []
    assert [case.theirs for case in CASES if bool(case.library) != bool(case.differs)] == []


def test_no_golden_is_left_over() -> None:
    known = {(case.project, case.theirs) for case in WRITTEN}
    made = {(p, each["theirs"]) for p, found in MADE.items() for each in found["losses"]}
    assert made == known


def test_the_page_is_that_of_the_table(request: pytest.FixtureRequest) -> None:
    text = page({project: found["version"] for project, found in MADE.items()})
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    assert PAGE.read_text("utf-8") == text, "run this test with --update-golden"
