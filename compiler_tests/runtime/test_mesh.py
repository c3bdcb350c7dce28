"""Calls of single ranks of a mesh, without processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.errors import RunError
from forgedsl_runtime.meshes import restart
from forgedsl_runtime.upstream import monarch
from forgedsl_runtime.upstream.monarch import Mesh


class Actor:
    """Two hosts of two processes; counts what is cut out of it."""

    extent = ("hosts", "procs")

    def __init__(self) -> None:
        self.slices: list[dict[str, int]] = []
        self.at: dict[str, int] = {}

    def slice(self, **at: int) -> Actor:
        self.slices.append(at)
        part = Actor()
        part.at = at
        return part

    @property
    def where(self) -> Any:
        async def where(word: str) -> Any:
            return word, self.at

        return where

    @property
    def setup(self) -> Any:
        async def setup() -> None:
            if self.at == {"hosts": 1, "procs": 0}:
                raise MemoryError("out of memory")
            await asyncio.Event().wait()  # for the rank that failed

        return setup


class Callee:
    """Asks an actor of this process."""

    def __init__(self, actor: Actor, ranks: int) -> None:
        self.actor = actor

    async def ask(self, name: str, *args: Any) -> list[Any]:
        return [await getattr(self.actor, name)(*args)]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch, "Callee", Callee)


def test_a_host_that_gives_no_answer_is_named_by_a_restart() -> None:
    class Fresh:
        service, origin = "gen", "x.forge:3:1"
        abandoned = 0

        async def first_fail_fast(self, endpoint: str, *args: Any) -> None:
            raise ValueError("error spawning proc mesh: Timeout")  # as Monarch does

        async def abandon(self) -> None:
            self.abandoned += 1

    fresh = Fresh()
    dead: Any = SimpleNamespace(
        service="gen", origin="x.forge:3:1", on=range(2, 3), recipe={"kwargs": {}},
        respawn=lambda **_: fresh,
    )  # fmt: skip
    with pytest.raises(RunError, match="gen could not start on host 2: error spawning"):
        asyncio.run(restart(dead, "key", lambda *_: None))
    assert fresh.abandoned == 1


def test_a_rank_is_cut_out_once_however_often_it_is_called() -> None:
    """Monarch keeps what it made of each slice for good."""
    actor = Actor()
    mesh = Mesh(service="s", origin="", name="m", size=2, procs=None, actor=actor, logs=Path("m"))
    said = [asyncio.run(mesh.one(3, "where", word)) for word in "ab"]
    assert said == [("a", {"hosts": 1, "procs": 1}), ("b", {"hosts": 1, "procs": 1})]
    assert actor.slices == [{"hosts": 1, "procs": 1}]


def test_a_rank_that_fails_is_heard_while_others_wait_for_it() -> None:
    mesh = Mesh(
        service="s", origin="", name="m", size=2, procs=None, actor=Actor(), logs=Path("m"),
        on=range(2),
    )  # fmt: skip
    with pytest.raises(MemoryError, match="out of memory"):
        asyncio.run(asyncio.wait_for(mesh.first_fail_fast("setup"), 10))
