"""Products of bfloat16 of a trainer on a CPU read nothing that nobody wrote, whatever the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from test_family_logits import printed

CASES = ("qwen2", "qwen3", "qwen3 with adapters", "qwen3_moe", "llama3")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchtitan")
    return printed("padding_watch.py", str(tmp_path_factory.mktemp("padding")))


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_products_of_a_trainer(found: Any, case: str) -> None:
    """The script fails at one that may; here that it saw products, some with room between rows."""
    assert found[case]["products"] > 50
    assert found[case]["padded"] > 0
