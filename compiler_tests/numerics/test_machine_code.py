"""Kernels compiled for sm_90 without a GPU: no spills, wide accesses, one exponential a logit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgedsl_runtime.losses import kernels
from forgedsl_runtime.losses.fused import Evaluation
from forgedsl_runtime.losses.kernels import SEQUENCE_BLOCK, SEQUENCE_OPTIONS
from forgedsl_runtime.losses.product import BLOCKS

SASS = Path(__file__).with_name("sass.py")
OTHER = {"PYTHONPATH": os.environ["FORGE_TRITON"]} if "FORGE_TRITON" in os.environ else {}
"""FORGE_TRITON names a folder with another Triton, `pip install --target FOLDER triton==3.7.1`."""

SEQUENCES = {"BLOCK": SEQUENCE_BLOCK}, SEQUENCE_OPTIONS
THREADS = {4: 128, 8: 256, 16: 512}
THREE_PROGRAMS = 65536 // (3 * 256)
"""registers of a thread where a multiprocessor has room for three programs of 8 warps"""
LAID_OUT = ("SLOTS", "HELD", "LEAD")
RING = {"BLOCK": 8192, "SLOTS": 14, "PARTS": 4}
ROW = {"V": 32000, "BLOCK": 4096, "INNER": 32, "PARTS": 2}
ROWS_ON_CHIP = (
    ("fused_row", ROW),
    ("fused_row", {**ROW, "mask": None}),
    ("fused_stream", {"V": 128256, "INNER": 32, "HELD": 5, "LEAD": 0, **RING}),
    ("fused_stream", {"V": 151936, "INNER": 32, "HELD": 8, "LEAD": 0, **RING}),
    ("fused_pair", {"V": 201088, "INNER": 32, "HELD": 4, "LEAD": 2, **RING, "PARTS": 2}),
    ("fused_pair", {"V": 262144, "INNER": 32, "HELD": 7, "LEAD": 2, **RING, "PARTS": 2}),
)
"""The launches of tuning.json, with 8 warps."""

RESCALE = [("_rescale", {"BLOCK": 16384}, 16)]
COUNTS = [
    ("_count", {"BLOCK": 1024, "SEQUENCES": True, "PAIRED": True}, 8),
    ("_count", {"BLOCK": 1024, "SEQUENCES": False, "PAIRED": False, "starts": None}, 8),
]

LOCAL = ("sft", "grpo_entropy", "sapo", "dppo", "ppo_dual")
LIKE = ("sapo", "dppo")  # whose kernels have the shape of the others'
COUPLED = ("gspo", "gmpo", "dpo")


def compile_for_gpu(tmp_path, loss, jobs):
    """What the machine code of each (kernel, constants, warps or launch options) holds."""
    module = tmp_path / "kernels.py"
    module.write_text(loss.kernels.text)
    return compile_file(tmp_path, module, loss, jobs)


def compile_file(tmp_path, module, loss, jobs):
    """The same, of the kernels in a file."""
    booleans = [f"{field.name}_ptr" for field in loss.fields if field.dtype == "bool"]
    named = [
        {"path": str(module), "kernel": name, "constants": constants, "booleans": booleans,
         "options": {"num_warps": options} if isinstance(options, int) else options}
        for name, constants, options in jobs
    ]  # fmt: skip
    listed = tmp_path / "jobs.json"
    listed.write_text(json.dumps(named))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SASS), str(listed)],
        capture_output=True,
        text=True,
        env={**environment, **OTHER, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def chosen_for(vocabulary):
    """The launch parameters of `fused` for bf16 logits on a Hopper."""
    entries = kernels.table()["sm_90"]["fused"]["bfloat16"]
    return kernels.Config(**entries[min((k for k in entries if int(k) >= vocabulary), key=int)])


@pytest.mark.parametrize(("kernel", "size"), ROWS_ON_CHIP[2:])
def test_what_is_compiled_here_is_what_is_launched(kernel, size):
    chosen = chosen_for(size["V"])
    assert (f"fused_{chosen.kernel}", chosen.num_warps) == (kernel, 8)
    counters = SimpleNamespace(counter=lambda *_: None)
    rows = SimpleNamespace(vocabulary=size["V"], kernels=counters, device=None)
    ring = Evaluation._ring(rows, chosen, size["INNER"] if kernel == "fused_pair" else 0)
    assert {name: ring[name] for name in LAID_OUT} == {name: size[name] for name in LAID_OUT}
    assert (chosen.block, chosen.parts) == (size["BLOCK"], size["PARTS"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("sft", marks=pytest.mark.full),
        *(pytest.param(name, marks=pytest.mark.deep) for name in ("grpo_entropy", "ppo_dual")),
        *(pytest.param(name, marks=pytest.mark.deep) for name in LIKE),
    ],
)
def test_rows_on_chip(losses, tmp_path, name):
    jobs = [(kernel, constants, 8) for kernel, constants in ROWS_ON_CHIP]
    code = compile_for_gpu(tmp_path, losses.standard(name), jobs)
    for found, (kernel, size) in zip(code, ROWS_ON_CHIP, strict=True):
        # the pinned Triton spills nothing; others, which nothing was tuned with, a few words
        assert found["stack"] <= (0 if found["triton"].startswith("3.7") else 64), kernel
        assert found["UTMALDG.3D"] > 0
        assert found["STG.E.128"] > 0
        row = kernel == "fused_row"
        assert found["shared"] <= 233472 // (3 if row else 1) - 1024
        assert found["registers"] <= (THREE_PROGRAMS if row else 255)
        # a step of the loop and those written out each have their logits twice, tiles read before
        # the loop and the path for a far label once, the label and what the loss says a few
        tiles = -(-size["V"] // size["BLOCK"]) if row else max(1, size["HELD"]) + 1
        once = 1 + size.get("LEAD", 0)
        assert found["MUFU.EX2"] <= (2 * tiles + once) * size["BLOCK"] // THREADS[8] + 24


@pytest.mark.deep
@pytest.mark.parametrize("name", ["sft", "grpo_entropy"])
def test_rows_of_other_vocabularies(losses, tmp_path, name):
    """Sizes for which the assembler bounds registers by itself, launched as the table says."""
    jobs = []
    sizes = (50304, 57344, 65536, 73728, 81920, 100352, 122880)
    entries = [(size, chosen_for(size)) for size in sizes]
    for vocabulary, entry in entries:
        size = {"V": vocabulary, "BLOCK": entry.block, "INNER": 32, "PARTS": entry.parts}
        tiles = -(-vocabulary // entry.block)
        slots = min(entry.slots, tiles + entry.ahead)
        held = tiles + entry.ahead - slots
        size |= {"SLOTS": slots, "HELD": held, "LEAD": 0} if slots else {}
        jobs.append((f"fused_{entry.kernel}", size, entry.options))
    code = compile_for_gpu(tmp_path, losses.standard(name), jobs)
    for found, job, (_, entry) in zip(code, jobs, entries, strict=True):
        most = 8 if job[1]["V"] == 81920 else 0
        assert found["stack"] <= most or not found["triton"].startswith("3.7"), job
        packed = job[1].get("HELD", 99) * entry.block // 2 <= 72 * THREADS[8]
        assert (found["HMNMX2.BF16_V2.NAN"] > 0) == packed  # two logits clamped at once
        if entry.kernel == "stream":  # so many programs fit on a multiprocessor
            assert found["shared"] <= 233472 // entry.programs - 1024
            assert found["registers"] <= min(255, 65536 // entry.programs // THREADS[8])


@pytest.mark.parametrize(
    "name",
    [
        *("sft", "dpo"),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("grpo_entropy", "gspo")),
        *(
            pytest.param(name, marks=pytest.mark.deep)
            for name in (*LOCAL, *COUPLED)
            if name not in ("sft", "dpo", "grpo_entropy", "gspo")
        ),
    ],
)
def test_plain_kernels(losses, tmp_path, name):
    loss = losses.standard(name)
    size = {"V": 151936, "BLOCK": 4096}
    names = ["statistics", "apply", *(["fused"] if name in LOCAL else [])]
    jobs = [(kernel, size, 8) for kernel in names]
    jobs.append(("sequences", *SEQUENCES))
    per_thread = size["BLOCK"] // THREADS[8]
    for kernel, found in zip(
        [*names, "sequences"], compile_for_gpu(tmp_path, loss, jobs), strict=True
    ):
        assert (found["stack"], found["LDL"], found["STL"]) == (0, 0, 0), kernel
        if kernel in ("statistics", "apply"):  # the slow path and the label cost a few more
            passes = 2 if kernel == "statistics" else 1
            assert found["MUFU.EX2"] <= passes * per_thread + 8


@pytest.mark.deep
@pytest.mark.parametrize("name", ["grpo_entropy", "dpo"])
def test_nothing_is_touched_before_the_wait(losses, tmp_path, name):
    """A kernel that is launched while the one before still runs waits before it reads or writes."""
    loss = losses.standard(name)
    size = {"V": 32000, "BLOCK": 4096}
    jobs = [(kernel, size, 8) for kernel in ("statistics", "apply")]
    jobs.append(("sequences", *SEQUENCES))
    if loss.phase == "token-local":
        jobs += [("prepare", *SEQUENCES), ("fused", size, 8)]
        jobs += [(kernel, constants, 8) for kernel, constants in ROWS_ON_CHIP]
    found = compile_for_gpu(tmp_path, loss, jobs)
    folder = Path(kernels.__file__).parent
    for name, more in (("rescale.py", RESCALE), ("counts.py", COUNTS)):
        found += compile_file(tmp_path, folder / name, loss, more)
    for code in found:
        assert code["waits"]
        assert code["releases"]
        assert code["early"] == []
    plain = [(kernel, {**constants, "OVERLAP": False}, warps) for kernel, constants, warps in jobs]
    for code in compile_for_gpu(tmp_path, loss, plain[:1]):
        assert not code["waits"]
        assert not code["releases"]
        assert code["early"] != []


TILES = {"H": 2048, "ROWS": 128, "COLUMNS": 256, "DEPTH": 64, "GROUP": 32, "TAIL": True}
EVERY = {"MEAN": True, "TILTED": True, "LEVEL": True}
NONE = {"MEAN": False, "TILTED": False, "LEVEL": False}


@pytest.mark.full
@pytest.mark.parametrize("extra", [NONE, EVERY])
def test_the_product_keeps_all_in_registers(losses, tmp_path, extra):
    module = Path(kernels.__file__).with_name("product_kernels.py")
    modes = [("sums", False), ("weights", False), ("gradient", False), ("largest", True)]
    modes += [("sums", True), ("weights", True)] if extra is NONE else []
    options = {"num_warps": BLOCKS["cuda"].num_warps, "num_stages": BLOCKS["cuda"].num_stages}
    jobs = [("product", {**TILES, **extra, "MODE": mode, "AGAIN": again}, options)
            for mode, again in modes]  # fmt: skip
    code = compile_file(tmp_path, module, losses.standard("sft"), jobs)
    for (mode, again), found in zip(modes, code, strict=True):
        assert (found["stack"], found["LDL"], found["STL"]) == (0, 0, 0), (mode, again)
        assert found["HGMMA"] > 0
        assert found["UTMALDG.2D"] > 0
        assert found["shared"] <= 232448
        per_thread = TILES["ROWS"] * TILES["COLUMNS"] // THREADS[8]
        assert found["MUFU.EX2"] == (0 if mode == "largest" else per_thread)
