"""A replica that is slower than the others is named once, with its host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.runtime.services.pace import WINDOW, Pace


@pytest.mark.parametrize(("times", "named"), [(3.0, ["gen1"]), (1.6, [])])
def test_a_replica_on_a_slow_host_is_named_once(times: float, named: list[str]) -> None:
    said: list[str] = []
    pace = Pace(said.append)
    meshes = [SimpleNamespace(name=f"gen{i}", service="gen", on=range(i, i + 1)) for i in range(3)]
    for turn in range(3 * WINDOW):
        for mesh in meshes:
            seconds = (times if mesh.name == "gen1" else 1.0) * (1 + turn % 5)
            done: Any = SimpleNamespace(token_ids=[1] * 10, started=5.0, finished=5.0 + seconds)
            pace.took(mesh, done)  # type: ignore[arg-type]
    assert [text.partition(" ")[0] for text in said] == named
    assert all("gen1 on host 1 takes 3.0 times as long for a token" in text for text in said)
