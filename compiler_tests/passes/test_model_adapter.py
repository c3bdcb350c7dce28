"""P217: adapters that cannot be merged into their model are told before the run."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from forge_texts import job_of, text_at

from forgedsl.adapters import PREFIX, A, B, model_shapes
from forgedsl.diagnostics import Diagnostic
from forgedsl.shipped import shipped_root

TEXT = """
model m { source = SOURCE, adapter = local("adapter") }
dataset d { source = jsonl("forgedsl:data/arithmetic_demos.jsonl"), chat = row.messages }
service trainer : titan(m) { device = cpu }
loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) { minimize token_mean(-logprob, mask) }
flow train {
  batch = d.batches()
  trainer.step(batch, loss = nll)
}
schedule sync { steps = 1 }
"""
LOCAL = 'local("forgedsl:models/tiny_math")'
LAYER = "model.layers.0.self_attn.q_proj"
SETTINGS = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "use_dora": False}


def written(folder: Path, halves: dict[str, tuple[int, int]], **settings: Any) -> None:
    """Write an adapter of zeros without torch."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(SETTINGS | settings))
    header, end = {}, 0
    for name, shape in halves.items():
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    file = folder / "adapter_model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def halves(layer: str = LAYER, wider: int = 0) -> dict[str, tuple[int, int]]:
    rows, columns = model_shapes(shipped_root() / "models/tiny_math")[f"{LAYER}.weight"]
    return {PREFIX + layer + A: (2, columns + wider), PREFIX + layer + B: (rows, 2)}


def told(folder: Path, source: str = LOCAL) -> tuple[Any, list[Diagnostic]]:
    """The job, and what is said."""
    found: tuple[Any, list[Diagnostic]] = job_of(TEXT, ("SOURCE", source), folder=folder)
    return found


def test_an_adapter_that_fits_is_part_of_the_job(tmp_path: Path) -> None:
    written(tmp_path / "adapter", halves())
    job, found = told(tmp_path)
    assert found == []
    adapter = job.models["m"].adapter
    assert adapter.path == "inputs/adapter"
    assert len(adapter.sha256) == 64


def test_a_model_without_one_has_the_job_that_it_had(tmp_path: Path) -> None:
    written(tmp_path / "adapter", halves())
    job, _ = told(tmp_path)
    model = job.models["m"].model_copy(update={"adapter": None})
    assert "adapter" not in model.model_dump_json()


@pytest.mark.parametrize(
    ("source", "layers", "settings", "message"),
    [
        (LOCAL, halves("model.layers.9.self_attn.q_proj"), {}, "the model has no weight"),
        (LOCAL, halves(wider=1), {}, "in the adapter"),
        (LOCAL, halves(), {"use_dora": True}, "`use_dora` is true, which cannot be merged"),
        (LOCAL, {}, {}, "it has no layers"),
        (
            'random(1), arch = qwen3("0.6B"), tokenizer = local("forgedsl:models/tiny_math")',
            halves(), {}, "the model has random weights",
        ),
    ],
)  # fmt: skip
def test_one_that_does_not_is_told(
    tmp_path: Path, source: str, layers: Any, settings: dict[str, Any], message: str
) -> None:
    written(tmp_path / "adapter", layers, **settings)
    job, found = told(tmp_path, source)
    assert job is None
    (finding,) = [d for d in found if d.code == "P217"]
    assert finding.message.startswith("the adapter of `m` cannot be merged: ")
    assert message in finding.message
    assert finding.help
    assert text_at(TEXT.replace("SOURCE", source), finding) == 'local("adapter")'


def test_a_folder_without_an_adapter_is_told(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    _, found = told(tmp_path)
    assert [d.code for d in found] == ["P217"]
    assert "it has no adapter_config.json" in found[0].message


def test_damaged_files_are_told(tmp_path: Path) -> None:
    written(tmp_path / "adapter", halves())
    (tmp_path / "adapter/adapter_model.safetensors").write_bytes(b"version https://git-lfs")
    _, found = told(tmp_path)
    assert "its files cannot be read" in found[0].message
