"""What a mesh that did not start wrote last."""

from __future__ import annotations

from pathlib import Path

import pytest

from forgedsl_runtime.upstream.monarch import Mesh


@pytest.mark.parametrize(("written", "said"), [("", ""), ("a\nb\n", "its log ends with:\na\nb")])
def test_only_a_log_with_lines_is_cited(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "reward_a-7.log").write_text(written)
    mesh = Mesh(
        service="a", origin="", name="reward_a", size=1, procs=None, actor=None,
        logs=tmp_path / "reward_a",
    )  # fmt: skip
    assert mesh.last_words() == said
