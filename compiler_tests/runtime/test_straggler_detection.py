"""A replica or rank that is slower than the others is named once, with its host."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from forgedsl_runtime.services.straggler_detection import (
    LEAST,
    PROBES,
    SLOW,
    SLOW_RANK,
    WINDOW,
    StragglerDetector,
)
from forgedsl_runtime.services.trainer import TrainerClient
from forgedsl_runtime.upstream.monarch import Mesh

TEXT = "{} takes {:.1f} times as long (median of {})"


@pytest.mark.parametrize(("times", "named"), [(3.0, ["gen1 on host 1 takes 3.0 times"]), (1.6, [])])
def test_a_replica_on_a_slow_host_is_named_once(times: float, named: list[str]) -> None:
    said: list[str] = []
    pace = StragglerDetector(said.append, TEXT, WINDOW, SLOW)
    for turn in range(3 * WINDOW):
        for index in range(3):
            slower = times if index == 1 else 1.0
            pace.record_time(f"gen{index} on host {index}", slower * (1 + turn % 5))
    assert [text.partition(" as long")[0] for text in said] == named


@pytest.mark.parametrize(
    ("scale", "times", "named"),
    [(0.08, 1.6, ["rank 2"]), (0.08, 1.4, []), (0.001, 1.9, [])],
    ids=["slow", "nearly as fast", "too little to say"],
)
def test_a_slow_rank_is_named_once(scale: float, times: float, named: list[str]) -> None:
    said: list[str] = []
    pace = StragglerDetector(said.append, TEXT, PROBES, SLOW_RANK, LEAST)
    for turn in range(4 * PROBES):
        stalled = 9.0 if turn == PROBES else 1.0  # a single one says nothing
        for rank, factor in enumerate((1.0, stalled, times)):
            pace.record_time(f"rank {rank}", factor * scale)
    assert [text.partition(" takes")[0] for text in said] == named


TRAINER = Mesh(
    service="trainer", origin="", name="trainer", size=1, procs=None, actor=None, logs=Path(),
    on=range(1, 3), members=[{"pid": 70}, {"pid": 71}],
)  # fmt: skip


def test_the_ranks_of_a_trainer_are_compared_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is alone is not."""
    called: list[str] = []
    said: list[str] = []

    async def call(self: Mesh, endpoint: str, *args: Any) -> list[float]:
        called.append(endpoint)
        return [0.01, 0.02]

    monkeypatch.setattr(Mesh, "call", call)

    async def steps(mesh: Mesh) -> None:
        client: Any = TrainerClient(mesh, said.append)
        for turn in range(2 * PROBES):
            client._gauged = -1e9 if turn % 2 else client._gauged
            await client.step(None, "loss")

    asyncio.run(steps(dataclasses.replace(TRAINER, on=range(1), members=TRAINER.members[:1])))
    assert called == ["step"] * 2 * PROBES
    called.clear()
    asyncio.run(steps(TRAINER))
    assert called.count("gauge") == PROBES + 1
    assert [text.partition(" takes")[0] for text in said] == ["rank 1 on host 2, pid 71"]
