"""Models of random weights: what their folder needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.lower.parts import Arch
from forgedsl.runtime.models import resolve_model

TOKENIZER = Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"
"""of 48 tokens"""


@pytest.mark.parametrize("vocab", [48, 47])
def test_every_token_has_its_row(make_job: Any, tmp_path: Path, vocab: int) -> None:
    dims = {"layers": 1, "hidden": 32, "heads": 2, "vocab": vocab}
    model = spec.Model(
        source=spec.RandomModel(seed=1), dtype="f32", context=64,
        arch=Arch(family="qwen3", dims=dims),
        tokenizer=spec.LocalModel(path=str(TOKENIZER), sha256=""),
    )  # fmt: skip
    job = make_job(models={"m": model}, services={})
    if vocab == 48:
        assert (resolve_model(job, "m", tmp_path, tmp_path) / "config.json").is_file()
        return
    with pytest.raises(LaunchError, match="has vocab = 47, and its tokenizer 48 tokens: write"):
        resolve_model(job, "m", tmp_path, tmp_path)
