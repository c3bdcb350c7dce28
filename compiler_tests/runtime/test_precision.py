"""What a trainer keeps: steps are those of AdamW written out, and fit in the bytes of the plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_family_logits import printed
from tolerance import apart

pytestmark = pytest.mark.full

OPERATIONS, LR = 16, 1e-2
IN_F32 = apart(torch.float32, OPERATIONS) / LR
"""of weights near 1, which a step changes by LR"""
CASES = {
    "f32": IN_F32,
    "bf16_moments": 2**-7,
    "bf16": 2**-7,
    "f32 offloaded": IN_F32,
    "bf16_moments offloaded": 2**-7,
}
"""how far a change may be off, of the largest in its tensor; moments in bf16 have 8 bits"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchtitan")
    return printed("precision_parity.py", str(tmp_path_factory.mktemp("precision")))


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_adamw_written_out(found: Any, case: str) -> None:
    assert found[case]["gap"] < CASES[case]


@pytest.mark.parametrize("case", CASES)
def test_it_learns(found: Any, case: str) -> None:
    first, *_, last = found[case]["losses"]
    assert last < first - 0.1


@pytest.mark.parametrize("case", CASES)
def test_it_keeps_the_bytes_of_the_plan(found: Any, case: str) -> None:
    assert found[case]["bytes"] == found[case]["planned"]


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_goes_on_as_if_there_had_been_none(found: Any, case: str) -> None:
    assert found[case]["again"]
