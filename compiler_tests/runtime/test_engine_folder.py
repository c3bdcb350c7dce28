"""An engine that no trainer publishes to, such as a judge, holds the weights of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_family_logits import printed


def test_an_engine_is_compared_with_the_files_of_its_model(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    found = printed("engine_folder.py", str(tmp_path))
    assert found["own"] == {"tensors": 35, "proved": 35}
    assert "its weights are not those in FOLDER" in found["one bit"]["error"]
    assert found["named"]
