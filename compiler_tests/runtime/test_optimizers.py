"""Steps of every kind of optimizer are those of torch's own, also where weights lie in parts."""

from __future__ import annotations

from typing import Any

import pytest
from test_family_logits import printed

pytestmark = pytest.mark.full

CASES = ("muon", "muon original", "muon of experts", "sgd", "sgd with momentum", "adam")
LAYOUTS = ("fsdp", "replicas", "fsdp of tp")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchtitan")
    return printed("optimizer_parity.py", str(tmp_path_factory.mktemp("optimizers")))


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_torch_bit_by_bit(found: Any, case: str) -> None:
    assert found[case]["equal"]


@pytest.mark.parametrize("case", CASES)
def test_it_learns(found: Any, case: str) -> None:
    losses = found[case]["losses"]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[-1] > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_it_keeps_the_bytes_of_the_plan(found: Any, case: str) -> None:
    assert found[case]["bytes"] == found[case]["planned"]


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_goes_on_as_if_there_had_been_none(found: Any, case: str) -> None:
    assert found[case]["again"]


@pytest.mark.full
def test_muon_of_parts_is_muon_of_the_whole() -> None:
    pytest.importorskip("torchtitan")
    assert printed("muon_parts.py", *LAYOUTS) == dict.fromkeys(LAYOUTS, True)
