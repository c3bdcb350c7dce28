"""Every planted fault is found by the test that its row names."""

from __future__ import annotations

import os
from pathlib import Path

import planted
import pytest

pytestmark = pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1")
PLACES = sorted({"/".join(fault.file.split("/")[:2]) for fault in planted.faults()})


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted.copy_of_the_tree(tmp_path_factory.mktemp("tree"))


def test_without_a_fault_the_tests_pass(tree: Path) -> None:
    """So a fault makes them fail, and no test is missing."""
    assert planted.passes(sorted({fault.found_by for fault in planted.faults()}), tree)


@pytest.mark.parametrize("place", PLACES)
def test_planted_faults_are_found(place: str, tree: Path) -> None:
    chosen = [
        fault
        for fault in planted.faults()
        if fault.file.startswith(f"{place}/") or fault.file == place
    ]
    assert [fault for fault in chosen if not planted.is_found(fault, tree)] == []
