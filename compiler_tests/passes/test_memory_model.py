"""The memory formulas against the parts they describe: torchtitan's layers, the runtime's sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forgedsl.families.base import Dims
from forgedsl.services.titan.facts import KIND
from forgedsl.services.titan.memory import (
    HEAD_ELEMENTS,
    TrainerShape,
    activation_items,
    layer_bytes,
)
from forgedsl.services.vllm.memory import CPU_POOL
from forgedsl.sizes.memory import GIB
from forgedsl.sizes.params import num_params

DIMS = {"hidden": 256, "heads": 6, "kv_heads": 2, "head_dim": 32, "ffn": 640, "vocab": 64}
PUBLISHED = {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 12288,
             "vocab": 151936}  # fmt: skip
ROWS, SEQ_LEN = 2, 128


MIXTURE = {"hidden": 512, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 96, "vocab": 64,
           "experts": 8, "active": 3}  # fmt: skip


SHARED = {**MIXTURE, "shared": 1, "dense_ffn": 640}


def counts(dims):
    pytest.importorskip("torchtitan")
    request = {"dims": {**dims, "rope_theta": 1e4}, "rows": ROWS, "seq_len": SEQ_LEN}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "count_activations.py"), json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.fixture(scope="module")
def counted():
    return counts(DIMS)


@pytest.fixture(scope="module")
def counted_with_experts():
    return counts(MIXTURE)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("dtype", "itemsize", "cp"), [("f32", 4, 1), ("bf16", 2, 1), ("shared", 4, 2)]
)
def test_what_a_layer_keeps(counted, mode, dtype, itemsize, cp):
    keeps(DIMS, counted, mode, dtype, itemsize, cp)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("dtype", "itemsize", "cp"), [("f32", 4, 1), ("bf16", 2, 1), ("shared", 4, 2)]
)
def test_what_a_layer_of_experts_keeps(counted_with_experts, mode, dtype, itemsize, cp):
    keeps(MIXTURE, counted_with_experts, mode, dtype, itemsize, cp)


@pytest.fixture(scope="module")
def counted_with_shared_experts():
    return counts({**SHARED, "qk_norm": True})


@pytest.mark.full
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("dtype", "itemsize", "cp"), [("f32", 4, 1), ("bf16", 2, 1), ("shared", 4, 2)]
)
def test_what_a_layer_with_a_shared_expert_keeps(
    counted_with_shared_experts, mode, dtype, itemsize, cp
):
    dims = {**SHARED, "corrected": True, "qkv_bias": True, "rotated": 0.5}
    keeps(dims, counted_with_shared_experts, mode, dtype, itemsize, cp)


def keeps(dims, counted, mode, dtype, itemsize, cp):
    shape = TrainerShape(
        dims=Dims(layers=2, context=SEQ_LEN, tied=True, qk_norm=True, **dims),
        device="cpu",
        degrees={**dict.fromkeys(KIND.degrees, 1), "cp": cp},
        itemsize=itemsize,
        trained=True,
        checkpointing=mode,
        seq_len=SEQ_LEN,
        rows=ROWS,
        published=0,
    )
    found = counted[f"{mode} {dtype}"]
    assert layer_bytes(shape, mode) == pytest.approx(found, rel=0.1)


def test_stages_of_a_pipeline_hold_the_model_between_them():
    dims = Dims(layers=5, context=SEQ_LEN, tied=False, qk_norm=True, **DIMS)
    first, last = (
        TrainerShape(
            dims=dims, device="gpu", degrees=dict.fromkeys(KIND.degrees, 1) | {"pp": 2},
            itemsize=2, trained=True, checkpointing="none", seq_len=SEQ_LEN, rows=ROWS,
            published=0, stage=stage,
        )
        for stage in (0, 1)
    )  # fmt: skip
    assert (first.layers, last.layers) == (3, 2)
    assert first.params + last.params == num_params(dims)
    items = [{item.name for item in activation_items(shape)} for shape in (first, last)]
    assert ["loss head" in names for names in items] == [False, True]
    kept, whole = (activation_items(shape)[0].bytes for shape in (first, last))
    assert kept == pytest.approx(2 * 3 / 2 * whole, rel=0.1)


def test_sizes_are_those_of_the_runtime():
    heads = pytest.importorskip("forgedsl_runtime.losses.head")
    variables = pytest.importorskip("forgedsl_runtime.services.vllm.upstream.variables")
    assert {
        "cpu": heads.CHUNK_ELEMENTS["cpu"],
        "gpu": heads.CHUNK_ELEMENTS["cuda"],
    } == HEAD_ELEMENTS
    assert CPU_POOL == variables.CPU_KV_CACHE_GIB * GIB


@pytest.mark.parametrize(("mode", "most"), [("none", 0.31), ("selective", 0.36), ("full", 0.26)])
def test_ranks_that_share_rows_share_their_activations(mode, most):
    dims = Dims(layers=36, context=32768, tied=False, qk_norm=True, **PUBLISHED)
    kept = []
    for cp in (1, 4):
        shape = TrainerShape(
            dims=dims, device="gpu", degrees={**dict.fromkeys(KIND.degrees, 1), "cp": cp},
            itemsize=2, trained=True, checkpointing=mode, seq_len=32768, rows=1, published=2,
        )  # fmt: skip
        kept.append(activation_items(shape)[0].bytes)
    assert kept[1] < most * kept[0]
