"""Adapters: they start as nothing, learn while the weights stand still, and merge into them."""

from __future__ import annotations

from typing import Any

import pytest
from family_parity import dims_of
from test_family_logits import close_of, printed
from test_publication import result, sync_node

from forgedsl.runtime.guards import GuardError, UnchangedWeightsGuard
from forgedsl.sizes.params import adapter_params

FAMILIES = ("qwen2", "llama3", "qwen3_moe")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchtitan")
    return printed("lora_parity.py", str(tmp_path_factory.mktemp("lora")))


@pytest.mark.parametrize("family", FAMILIES)
def test_new_adapters_change_nothing(found: Any, family: str) -> None:
    assert found[family]["start"] < close_of(family) * found[family]["largest"][0]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_adapters_learn(found: Any, family: str) -> None:
    first, last = found[family]["losses"]
    assert last < first - 0.2
    assert found[family]["moved"] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_give_the_logits_of_transformers(found: Any, family: str) -> None:
    assert found[family]["merged"] < close_of(family) * found[family]["largest"][1]


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_parameters_are_trained_as_the_plan_counts(found: Any, family: str) -> None:
    assert found[family]["trained"] == adapter_params(dims_of(family, {}), 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_that_are_not_merged_are_named_at_their_first_publication(
    found: Any, family: str
) -> None:
    merged, unmerged = found[family]["changed"]
    guard, node = UnchangedWeightsGuard(), sync_node()
    assert merged > 0.1
    assert guard.check(node, result(merged), "f32") == ""
    with pytest.raises(GuardError, match="none of the weights of generator"):
        guard.check(node, result(unmerged), "f32")
