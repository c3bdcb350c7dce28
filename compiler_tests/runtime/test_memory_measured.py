"""The memory that `plan` tells against the growth of real processes; minutes, so only when deep."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks/memory.py"


@pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1")
@pytest.mark.timeout(1200)
def test_each_phase_of_each_process_is_estimated_within_a_quarter(tmp_path):
    spec = importlib.util.spec_from_file_location("memory_benchmark", BENCHMARK)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.measure(tmp_path)
    assert len(found) == 9
    assert all(abs(each.off) <= 0.25 for each in found), module.table(found)
