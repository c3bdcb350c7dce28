"""Kernels of random losses compiled for sm_90 without a GPU: no spills, no local memory, and no
more exponentials a logit than those of the standard losses."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import random_losses

import forgedsl

SOURCE = Path(__file__).with_name("test_machine_code.py")
SPEC = importlib.util.spec_from_file_location("machine_code", SOURCE)
assert SPEC is not None
assert SPEC.loader is not None
machine_code = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(machine_code)

SEEDS = range(120 if os.environ.get("FORGE_DEEP") == "1" else 1)
SIZE = {"V": 128256, "BLOCK": 4096}
WARPS, THREADS = 8, 256
PASSES = {"statistics": 2, "apply": 1, "fused": 3}
"""Loops with an exponential: a row is read again where its label lies far below the others."""


@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_of_random_losses(tmp_path, seed):
    loss = forgedsl.compile_loss(random_losses.from_seed(seed))
    text = loss.kernels.text
    names = [name for name in (*PASSES, "prepare", "sequences") if f"\ndef {name}(" in text]
    assert {"statistics", "apply", "sequences"} <= {*names}
    jobs = [
        (name, SIZE, WARPS) if name in PASSES else (name, *machine_code.SEQUENCES) for name in names
    ]
    own = text.count("tl.exp(") + text.count("expm1(") + text.count("tl.exp2(")
    on_chip = machine_code.ROWS_ON_CHIP if "\ndef fused_row(" in text else ()
    jobs += [(name, size, WARPS) for name, size in on_chip]
    code = machine_code.compile_for_gpu(tmp_path, loss, jobs)
    for (name, _, _), found in zip(jobs, code, strict=True):
        assert (found["stack"], found["LDL"], found["STL"]) == (0, 0, 0), (name, found)
        if name == "fused_row":
            assert found["registers"] <= machine_code.THREE_PROGRAMS
        if name in PASSES:
            per_thread = SIZE["BLOCK"] // THREADS
            assert found["MUFU.EX2"] <= PASSES[name] * per_thread + 8 + 2 * own
