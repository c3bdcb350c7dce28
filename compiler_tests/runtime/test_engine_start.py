"""What vLLM compiled for a model is found again by the next run, whose folder is another one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")
HERE = Path(__file__).parent
TINY = HERE.parents[1] / "pipelines" / "models" / "tiny_math"


@pytest.mark.full
@pytest.mark.timeout(120)
def test_runs_of_one_model_share_what_was_compiled(tmp_path: Path) -> None:
    folders = [tmp_path / name / "policy" for name in ("run-1", "run-2", "wider")]
    for folder in folders:
        shutil.copytree(TINY, folder)
    config = json.loads((TINY / "config.json").read_text())
    wider = config | {"intermediate_size": 2 * config["intermediate_size"]}
    (folders[2] / "config.json").write_text(json.dumps(wider))
    done = subprocess.run(
        [sys.executable, str(HERE / "engine_start.py"), *map(str, folders)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, other = json.loads(done.stdout.split("RESULT")[1])
    assert (first == second, first == other) == (True, False)


def test_what_is_frozen_before_graphs_stays_frozen_after_them() -> None:
    code = (
        "import gc\n"
        "from unittest.mock import patch\n"
        "from vllm.utils import gc_utils\n"
        "from forgedsl_runtime.services.vllm.upstream.start import StaysFrozen\n"
        "def frozen():\n"
        "    with gc_utils.freeze_gc_for_cudagraph_capture():\n"
        "        assert not gc.isenabled()\n"
        "    assert gc.isenabled()\n"
        "    return gc.get_freeze_count()\n"
        "with patch.object(gc_utils, 'gc', StaysFrozen()):\n"
        "    ours = frozen()\n"
        "print(frozen(), ours > 1000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-2] == "0 True"
