"""Which replica a request goes to, by `route`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl.lower import job as spec
from forgedsl_runtime.services.generator import GeneratorClient, ReplicaAffinity
from forgedsl_runtime.stub.endpoints import StubClient

PROMPTS = [[1, 2, 3], [4, 5], [6], [7, 8, 9]]
GROUP = 3


def homes(route: Any, kind: type[GeneratorClient] = GeneratorClient) -> list[set[int]]:
    """The replicas that the completions of each prompt are asked from."""
    service = spec.VllmService(
        model="m",
        mesh=spec.Mesh(name="g", device="cpu", replicas=4),
        dtype="f32",
        sampling=spec.Sampling(max_tokens=4),
        route=route,
    )

    async def main() -> list[tuple[int, list[int]]]:
        asked: list[tuple[int, list[int]]] = []
        client = kind(service, [SimpleNamespace() for _ in range(4)], lambda *_: None)
        for index, replica in enumerate(client.replicas):

            def post(request: Any, index: int = index) -> asyncio.Future[None]:
                asked.append((index, PROMPTS[int(request.id) // GROUP]))
                return asyncio.get_running_loop().create_future()

            replica.submitter = SimpleNamespace(post=post)
        each = [prompt for prompt in PROMPTS for _ in range(GROUP)]
        tasks = [asyncio.create_task(client.sample(p, service.sampling, 1)) for p in each]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return asked

    asked = asyncio.run(main())
    return [{index for index, ids in asked if ids == prompt} for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("route", "replicas"), [("sticky", 1), ("round_robin", GROUP), ("least_loaded", GROUP)]
)
def test_a_sticky_group_has_one_replica(route: str, replicas: int) -> None:
    assert [len(home) for home in homes(route)] == [replicas] * len(PROMPTS)


def test_a_rehearsal_routes_as_a_run_does() -> None:
    assert homes("sticky", StubClient) == homes("sticky")


def test_sticky_prompts_are_spread() -> None:
    assert len(set.union(*homes("sticky"))) > 1


def turns(route: Any, *, dies: bool = False, owes: int = 0) -> list[int]:
    """The replicas that three turns of a trajectory are asked from; behind the first its replica
    dies, or owes more than the others."""
    service = spec.VllmService(
        model="m", mesh=spec.Mesh(name="g", device="cpu", replicas=4), dtype="f32",
        sampling=spec.Sampling(max_tokens=4), route=route,
    )  # fmt: skip

    async def main() -> list[int]:
        asked: list[int] = []
        meshes: list[Any] = [SimpleNamespace() for _ in range(4)]
        client = GeneratorClient(service, meshes, lambda *_: None)
        for index, replica in enumerate(client.replicas):

            def post(request: Any, index: int = index) -> asyncio.Future[None]:
                asked.append(index)
                client.replicas[index].outstanding[request.id].future.set_result(None)
                return asyncio.get_running_loop().create_future()

            replica.submitter = SimpleNamespace(post=post)
        home = ReplicaAffinity([1, 2, 3])
        for turn in range(3):
            await client.sample([1, 2, 3, *range(turn)], service.sampling, 1, home=home)
            first = client.replicas[asked[0]]
            first.outstanding.update({str(-i): None for i in range(1, owes + 1)})
            if dies and first.alive:
                client.lost(first.mesh)
        return asked

    return asyncio.run(main())


@pytest.mark.parametrize("route", ["sticky", "round_robin", "least_loaded"])
def test_the_turns_of_a_trajectory_go_where_its_cache_is(route: str) -> None:
    assert len(set(turns(route, owes=4))) == 1


@pytest.mark.parametrize("more", [{"dies": True}, {"owes": 5}])
def test_a_trajectory_moves_where_its_replica_died_or_owes_too_much(more: Any) -> None:
    first, second, third = turns("least_loaded", **more)
    assert first != second == third
