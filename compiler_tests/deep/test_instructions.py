"""Other CPUs on one machine: tests that compare numbers pass by other instructions and threads.

    ONEDNN_MAX_CPU_ISA x MKL_ENABLE_INSTRUCTIONS x threads --pairwise--> pytest MODULES, once each

Rows in which both libraries have the same instructions run all tests, other rows those of
`make test`.

A CPU without the instructions that a row allows runs with fewer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONEDNN = ("AVX2", "AVX512_CORE", "DEFAULT")
"""the last is all that the CPU has, AMX where it is there"""
MKL = ("AVX2", "AVX512", "")
THREADS = ("1", "2")
ROWS = tuple(
    (one, mkl, THREADS[(i + j) % 2]) for i, one in enumerate(ONEDNN) for j, mkl in enumerate(MKL)
)
COMPILED = ("test_machine_code", "test_machine_code_fuzz", "test_emission", "test_page")
"""of code for GPUs, and of texts: no numbers of this CPU"""
RUNTIME = (
    "test_agent_run", "test_decode_attention", "test_environment_run", "test_expert_dispatch",
    "test_family_logits", "test_gap_of_a_step", "test_history_run",
    "test_lora", "test_mixed_run", "test_optimizers", "test_precision", "test_published_adapter",
    "test_real_model", "test_reference_by_trainer",
    "test_sampling", "test_tenants", "test_trainer_context", "test_trainer_experts",
    "test_trainer_pipeline", "test_trainer_products", "test_trainer_ranks",
    "test_trainer_tensor_parallel", "test_updates", "test_weight_arrival",
)  # fmt: skip
MODULES = (
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "compiler_tests/numerics").glob("test_*.py"))
        if path.stem not in COMPILED
    ),
    *(f"compiler_tests/runtime/{name}.py" for name in RUNTIME),
)


def test_rows_have_every_pair_of_settings() -> None:
    for (a, ones), (b, others) in combinations(enumerate((ONEDNN, MKL, THREADS)), 2):
        assert {(row[a], row[b]) for row in ROWS} == {(x, y) for x in ones for y in others}


def test_what_compares_numbers_of_the_runtime_is_run() -> None:
    """Whoever takes a tolerance from arithmetic is in the list."""
    folder = ROOT / "compiler_tests/runtime"
    asks = {
        path.stem
        for path in folder.glob("test_*.py")
        if re.search(r"^(import|from) tolerance", path.read_text("utf-8"), re.M)
    }
    away = {"test_launchers"}  # hosts made of processes, the numbers of test_trainer_ranks
    assert asks - away <= {*RUNTIME}


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("onednn", "mkl", "threads"), ROWS)
def test_numbers_are_near_enough(onednn: str, mkl: str, threads: str) -> None:
    whole = ONEDNN.index(onednn) == MKL.index(mkl)
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": onednn, "OMP_NUM_THREADS": threads,
                        "MKL_NUM_THREADS": threads}  # fmt: skip
    env |= {"MKL_ENABLE_INSTRUCTIONS": mkl} if mkl else {}
    env.pop("FORGE_DEEP", None)
    command = [sys.executable, "-m", "pytest", *MODULES, "-q", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--dist", "loadfile", *([] if whole else ["-m", "not full"])]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=7000, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
