"""What becomes of a mesh that dies: pools of rewards are started again, up to a point."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.errors import RunError
from forgedsl_runtime.endpoints import ServiceError, ServiceFailure
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.meshes import Fleet
from forgedsl_runtime.services import supervisor as module
from forgedsl_runtime.services.supervisor import DEATHS, Supervisor

FAILURE = ServiceFailure(service="correct", origin="x.forge:3:1", message="killed")


class FakeMesh:
    """Dies at once, but for the last."""

    service, name, origin, members = "correct", "reward_correct", "x.forge:3:1", ()
    on, on_gpus = range(1), False

    def __init__(self, deaths: int, lives: int) -> None:
        self.deaths, self.lives = deaths, lives

    async def call(self, endpoint: str) -> None:
        await asyncio.sleep(0)
        if self.deaths < self.lives:
            raise ServiceError(FAILURE, died=True)


class Stopped(FakeMesh):
    """Its second rank gives no answer, nor ends."""

    members = ({"pid": 7}, {"pid": 8})

    async def call(self, endpoint: str) -> None:
        await asyncio.Event().wait()

    async def unresponsive_ranks(self, seconds: float) -> list[int]:
        await asyncio.sleep(seconds)
        return [1]

    def describe_ranks(self, ranks: list[int]) -> str:
        return f"ranks {ranks}"


class FakePool:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def lost(self) -> int:
        self.calls.append("lost")
        return 3

    def restore(self, mesh: FakeMesh) -> None:
        self.calls.append(f"restore {mesh.deaths}")


def kept(lives: int, *, starts: int = 0) -> tuple[FakePool, Fleet, Any, list[Any]]:
    """A pool after so many deaths and `starts` that failed, its fleet, endpoints, and events."""
    failing = iter(range(starts))
    pool, seen = FakePool(), []
    first: Any = FakeMesh(0, lives)
    fleet = Fleet(samplers={}, trainers={}, rewards={"correct": first})

    async def restart(dead: Any) -> Any:
        if next(failing, None) is not None:
            raise RunError("it was killed too")
        return FakeMesh(dead.deaths + 1, lives)

    async def main() -> Any:
        endpoints = SimpleNamespace(samplers={}, pool=lambda mesh: pool, failures=asyncio.Queue())
        events = EventLog()
        events.subscribe(seen.append)
        keeper = Supervisor(fleet, endpoints, events, restart)  # type: ignore[arg-type]
        await keeper._keep_running(first)
        return endpoints

    return pool, fleet, asyncio.run(main()), seen


def test_a_pool_that_dies_is_started_again_and_gets_its_calls() -> None:
    pool, fleet, endpoints, seen = kept(1)
    assert pool.calls == ["lost", "restore 1"]
    assert fleet.rewards["correct"].deaths == 1
    assert endpoints.failures.empty()
    text = "killed; it is restarted; its unfinished calls (3) wait for its replacement"
    assert [event["text"] for event in seen if event["kind"] == "warning"] == [text]


def test_a_pool_that_dies_for_ever_ends_the_run() -> None:
    pool, _, endpoints, _ = kept(DEATHS + 1)
    assert pool.calls.count("lost") == DEATHS
    assert endpoints.failures.get_nowait() == FAILURE


def test_a_pool_that_dies_while_it_starts_is_started_once_more() -> None:
    pool, fleet, endpoints, seen = kept(1, starts=1)
    assert pool.calls == ["lost", "lost", "restore 2"]
    assert fleet.rewards["correct"].deaths == 2
    assert endpoints.failures.empty()
    said = [event["text"] for event in seen if event["kind"] == "warning"]
    assert said[1].startswith(
        "reward_correct died and could not be restarted: it was killed too; it is restarted"
    )


def test_a_pool_that_never_starts_ends_the_run() -> None:
    _, _, endpoints, _ = kept(1, starts=DEATHS)
    failure = endpoints.failures.get_nowait()
    assert failure.message.endswith("could not be restarted: it was killed too")


def test_a_rank_that_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped keeps its connection, and its peers wait for it."""
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.01)
    trainer: Any = Stopped(0, 0)
    fleet = Fleet(samplers={}, trainers={"trainer": trainer}, rewards={})

    async def main() -> str:
        endpoints: Any = SimpleNamespace(
            samplers={}, pool=lambda mesh: None, failures=asyncio.Queue()
        )
        await Supervisor(fleet, endpoints, EventLog(), None)._keep_running(trainer)  # type: ignore[arg-type]
        return endpoints.failures.get_nowait().message

    assert asyncio.run(main()) == "reward_correct: ranks [1] has not answered for 0 s"


class Lasting:
    """A mesh that lives as long as its hosts, and remembers where it was moved."""

    deaths, members = 0, ()

    def __init__(self, service: str, host: int, *, gpus: bool = False) -> None:
        self.service, self.name, self.origin = service, f"{service}-{host}", "x.forge:3:1"
        self.on, self.on_gpus = range(host, host + 1), gpus

    async def call(self, endpoint: str) -> None:
        await asyncio.Event().wait()

    def set_hosts(self, hosts: Any, on: range) -> None:
        self.on = on


class Engines:
    """The client of generators."""

    def __init__(self, meshes: list[Any]) -> None:
        self.replicas = [SimpleNamespace(mesh=mesh, alive=True) for mesh in meshes]

    def lost(self, mesh: Any) -> int:
        return 4

    async def restore(self, dead: Any, fresh: Any) -> None:
        pass


def after_the_loss_of_host_1(
    trainer: Any, engines: list[Any], hosts: int = 3
) -> tuple[Fleet, list[str], list[str]]:
    """A fleet of which host 1 is gone, the warnings, and what ended the run."""
    fleet = Fleet(samplers={"gen": engines}, trainers={"trainer": trainer}, rewards={})
    fleet.hosts.count = hosts
    fleet.hosts.attach = lambda on: None  # type: ignore[method-assign]
    fleet.hosts.lost_hosts = lambda: {1: "killed"}  # type: ignore[method-assign]

    async def restart(dead: Any) -> Any:
        return Lasting(dead.service, dead.on.start)

    async def main() -> tuple[list[str], list[str]]:
        endpoints: Any = SimpleNamespace(
            samplers={"gen": Engines(engines)}, pool=lambda mesh: None, failures=asyncio.Queue()
        )
        events, seen = EventLog(), []
        events.subscribe(seen.append)
        keeper = Supervisor(fleet, endpoints, events, restart)
        keeper.start()
        for _ in range(20):
            await asyncio.sleep(0)
        keeper.close()
        said = [event["text"] for event in seen if event["kind"] == "warning"]
        return said, [endpoints.failures.get_nowait().message] if endpoints.failures.qsize() else []

    return fleet, *asyncio.run(main())


def test_a_generator_whose_host_is_gone_starts_on_the_emptiest_other() -> None:
    fleet, said, ended = after_the_loss_of_host_1(Lasting("trainer", 0), [Lasting("gen", 1)])
    assert [mesh.name for mesh in fleet.samplers["gen"]] == ["gen-2"]
    (text,) = said
    assert text.startswith("gen-1: host 1 is lost: killed; it is restarted on host 2; ")
    assert ended == []


@pytest.mark.parametrize(("hosts", "then"), [(3, range(2, 3)), (1, range(1))])
def test_what_did_not_start_on_a_host_starts_on_another(hosts: int, then: range) -> None:
    """A host that hangs is not gone, and nothing can be started there."""
    mesh: Any = Lasting("gen", hosts // 2)
    fleet = Fleet(samplers={"gen": [mesh]}, trainers={"t": Lasting("t", 0)}, rewards={})  # type: ignore[dict-item]
    fleet.hosts.count = hosts
    fleet.hosts.attach = lambda on: None  # type: ignore[method-assign]
    assert fleet.move_to_live_host(mesh, failed=True)
    assert mesh.on == then


def test_a_run_goes_on_with_fewer_generators_where_no_host_has_gpus_for_one() -> None:
    engines: list[Any] = [Lasting("gen", host, gpus=True) for host in (1, 2)]
    fleet, said, ended = after_the_loss_of_host_1(Lasting("trainer", 0), engines)
    assert [mesh.name for mesh in fleet.samplers["gen"]] == ["gen-2"]
    assert said == [
        "gen-1: host 1 is lost: killed; no other host has free devices for it: gen continues "
        "with 1 replica"
    ]
    assert ended == []


def test_the_last_generator_ends_the_run_where_no_host_has_gpus_for_it() -> None:
    engines: list[Any] = [Lasting("gen", 1, gpus=True)]
    _, _, ended = after_the_loss_of_host_1(Lasting("trainer", 0), engines)
    assert ended == ["gen-1: host 1 is lost: killed; no other host is left to restart gen-1 on"]


def test_a_trainer_whose_host_is_gone_ends_the_run() -> None:
    _, _, ended = after_the_loss_of_host_1(Lasting("trainer", 1), [Lasting("gen", 0)])
    assert ended == ["trainer-1: host 1 is lost: killed"]
