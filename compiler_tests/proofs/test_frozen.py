"""A frozen model against the files of its folder: each difference is named by its tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from forgedsl.errors import RunError
from forgedsl.runs.proofs import text
from forgedsl_runtime.proofs import frozen
from forgedsl_runtime.proofs.digest import digest, unsigned
from forgedsl_runtime.proofs.frozen import check, check_parts, digests
from forgedsl_runtime.proofs.publication import Held


def state(seed: int = 3) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {f"layers.{i}.weight": torch.randn(6, 4, generator=rng) for i in range(5)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in two files."""
    weights = [*state().items()]
    save_file(dict(weights[:2]), tmp_path / "model-1.safetensors")
    save_file(dict(weights[2:]), tmp_path / "model-2.safetensors")
    return tmp_path


def test_a_model_that_was_loaded_whole_is_proved(folder: Path) -> None:
    found = check(folder, digests(state().items()))
    assert (found.tensors, found.proved) == (5, 5)
    assert found.record("reference") == {
        "proof": "frozen", "service": "reference", "folder": str(folder), "tensors": 5, "proved": 5,
    }  # fmt: skip


def test_files_are_compared_in_the_dtype_of_the_model(folder: Path) -> None:
    held = {name: value.bfloat16() for name, value in state().items()}
    assert check(folder, digests(held.items())).proved == 5


def test_a_model_of_another_folder_is_refused(folder: Path) -> None:
    with pytest.raises(RunError, match=r"layers\.0\.weight has other values.*and 1 more"):
        check(folder, digests(state(seed=4).items()))


def test_one_bit_is_enough(folder: Path) -> None:
    held = state()
    held["layers.3.weight"].view(torch.uint8)[2, 5] ^= 1
    with pytest.raises(RunError, match=r": layers\.3\.weight has other values in the model$"):
        check(folder, digests(held.items()))


def test_a_tensor_that_no_file_has_is_named(folder: Path) -> None:
    held = state() | {"head.weight": torch.zeros(3, 4)}
    with pytest.raises(RunError, match=r"head\.weight is in the model, but not in these files"):
        check(folder, digests(held.items()))


def test_of_large_files_some_tensors_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(frozen, "MOST_BYTES", (size + 1) // 2)
    found = check(folder, digests(state().items()))
    assert (found.tensors, found.proved) == (5, 3)


def parts(weights: dict[str, Tensor]) -> list[Held]:
    """What two ranks of an engine hold: half of the rows of each tensor."""
    return [
        Held(name=name, row=row, rows=3, column=0, columns=4, dtype="float32",
             where=f"rank {row // 3}",
             value=unsigned(int(digest(value[row : row + 3], row))))
        for name, value in weights.items()
        for row in (0, 3)
    ]  # fmt: skip


def test_parts_of_the_ranks_of_an_engine_are_compared_with_the_files(folder: Path) -> None:
    found = check_parts(folder, parts(state()))
    assert (found.tensors, found.proved) == (5, 5)
    with pytest.raises(RunError, match=r"layers\.0\.weight has other values.*and 1 more"):
        check_parts(folder, parts(state(seed=4)))


def test_a_part_that_an_engine_lacks_is_named(folder: Path) -> None:
    with pytest.raises(RunError, match=r"layers\.4\.weight: the engine holds 50% of its elements"):
        check_parts(folder, parts(state())[:-1])


def test_tensors_that_an_engine_has_joined_are_not_compared(folder: Path) -> None:
    held = parts(state() | {"experts.gate_up_proj": torch.zeros(6, 4)})
    found = check_parts(folder, held)
    assert (found.tensors, found.proved) == (6, 5)


def test_random_weights_are_those_of_the_trainer_of_the_model() -> None:
    drawn = frozen.digests({"a": torch.rand(3, 2), "b": torch.rand(2)}.items())
    other = frozen.digests({"a": torch.rand(3, 2)}.items())
    made = {
        "reference": frozen.RandomWeights("policy", False, {"a": drawn["a"]}),
        "teacher": frozen.RandomWeights("large", False, other),
        "trainer": frozen.RandomWeights("policy", True, drawn),
    }
    (line,) = frozen.check_random(made)
    assert line == {
        "proof": "frozen", "service": "reference", "like": "trainer", "tensors": 1, "proved": 1,
    }  # fmt: skip
    assert text(line) == "reference has the random weights of trainer, 1 tensor bit for bit"
    made["reference"] = frozen.RandomWeights("policy", False, other)
    with pytest.raises(RunError, match="the random weights of reference are not those of trainer"):
        frozen.check_random(made)
