"""The memory formulas against the parts they describe: torchtitan's layers, the runtime's sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forgedsl.families.base import Dims
from forgedsl.plan.memory import CPU_POOL, GIB, HEAD_ELEMENTS, TitanShape, layer_bytes
from forgedsl.services.titan import KIND

DIMS = {"hidden": 256, "heads": 6, "kv_heads": 2, "head_dim": 32, "ffn": 640, "vocab": 64}
ROWS, SEQ_LEN = 2, 128


@pytest.fixture(scope="module")
def counted():
    pytest.importorskip("torchtitan")
    request = {"dims": {**DIMS, "rope_theta": 1e4}, "rows": ROWS, "seq_len": SEQ_LEN}
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


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(("dtype", "itemsize"), [("f32", 4), ("bf16", 2)])
def test_what_a_layer_keeps(counted, mode, dtype, itemsize):
    shape = TitanShape(
        dims=Dims(layers=2, context=SEQ_LEN, tied=True, qk_norm=True, **DIMS),
        device="cpu",
        degrees=dict.fromkeys(KIND.degrees, 1),
        itemsize=itemsize,
        trained=True,
        checkpointing=mode,
        seq_len=SEQ_LEN,
        rows=ROWS,
        published=0,
    )
    assert layer_bytes(shape, mode) == pytest.approx(counted[f"{mode} {dtype}"], rel=0.1)


def test_sizes_are_those_of_the_runtime():
    heads = pytest.importorskip("forgedsl.runtime.losses.head")
    engine = pytest.importorskip("forgedsl.runtime.upstream.vllm")
    assert {
        "cpu": heads.CHUNK_ELEMENTS["cpu"],
        "gpu": heads.CHUNK_ELEMENTS["cuda"],
    } == HEAD_ELEMENTS
    assert CPU_POOL == engine.CPU_KV_CACHE_GIB * GIB
