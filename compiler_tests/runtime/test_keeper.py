"""What becomes of a mesh that dies: pools of rewards are started again, up to a point."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from forgedsl.runtime.endpoints import ServiceError, ServiceFailure
from forgedsl.runtime.events import EventLog
from forgedsl.runtime.meshes import Fleet
from forgedsl.runtime.services.keeper import DEATHS, Keeper

FAILURE = ServiceFailure(service="correct", origin="x.forge:3:1", message="killed")


class FakeMesh:
    """Dies at once, but for the last."""

    service, name, members = "correct", "reward_correct", ()

    def __init__(self, deaths: int, lives: int) -> None:
        self.deaths, self.lives = deaths, lives

    async def call(self, endpoint: str) -> None:
        await asyncio.sleep(0)
        if self.deaths < self.lives:
            raise ServiceError(FAILURE, died=True)


class FakePool:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def lost(self) -> int:
        self.calls.append("lost")
        return 3

    def restore(self, mesh: FakeMesh) -> None:
        self.calls.append(f"restore {mesh.deaths}")


def kept(lives: int) -> tuple[FakePool, Fleet, Any, list[Any]]:
    """A pool after so many deaths, its fleet, the endpoints, and the events."""
    pool, seen = FakePool(), []
    first: Any = FakeMesh(0, lives)
    fleet = Fleet(generators={}, titans={}, rewards={"correct": first})

    async def restart(dead: Any) -> Any:
        return FakeMesh(dead.deaths + 1, lives)

    async def main() -> Any:
        endpoints = SimpleNamespace(generators={}, pool=lambda mesh: pool, failures=asyncio.Queue())
        events = EventLog()
        events.subscribe(seen.append)
        keeper = Keeper(fleet, endpoints, events, restart)  # type: ignore[arg-type]
        await keeper._keep(first)
        return endpoints

    return pool, fleet, asyncio.run(main()), seen


def test_a_pool_that_dies_is_started_again_and_gets_its_calls() -> None:
    pool, fleet, endpoints, seen = kept(1)
    assert pool.calls == ["lost", "restore 1"]
    assert fleet.rewards["correct"].deaths == 1
    assert endpoints.failures.empty()
    text = "killed; it is started again; calls that it owed (3) wait for it"
    assert [event["text"] for event in seen if event["kind"] == "warning"] == [text]


def test_a_pool_that_dies_for_ever_ends_the_run() -> None:
    pool, _, endpoints, _ = kept(DEATHS + 1)
    assert pool.calls.count("lost") == DEATHS
    assert endpoints.failures.get_nowait() == FAILURE


def test_a_host_that_is_gone_fails_what_was_on_it() -> None:
    here, far = FakeMesh(0, 1), FakeMesh(0, 1)
    here.on, far.on = range(1), range(1, 2)
    meshes: Any = {"here": here, "far": far}
    fleet = Fleet(generators={}, titans=meshes, rewards={})
    fleet.hosts.lost = lambda: {1: "its process 17 ended with -9"}  # type: ignore[method-assign]
    said: list[Any] = []
    endpoints: Any = SimpleNamespace(report_failure=lambda *failure: said.append(failure))
    asyncio.run(Keeper(fleet, endpoints, EventLog(), None)._watch_hosts())  # type: ignore[arg-type]
    assert said == [(far, "host 1 is gone: its process 17 ended with -9")]
