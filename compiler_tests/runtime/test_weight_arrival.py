"""New weights arrive whole in running engines: two replicas, and one of two tensor-parallel ranks.
Weights that are not the sender's are refused, and so are engines that cannot be driven."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainer_ranks import recorded_batch, recorded_loss
from tolerance import near, of_shipped

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.services.generator import PROBE_GAPS, probe_limit

REQUESTS = tuple([5, 6, 7 + i] for i in range(8))


def generator(name: str, *, tp: int = 1, replicas: int = 1) -> spec.VllmService:
    return spec.VllmService(
        model="policy",
        mesh=spec.Mesh(name=name, procs=tp, replicas=replicas, device="cpu"),
        dtype="f32",
        parallel=spec.VllmParallel(tp=tp),
        sampling=spec.Sampling(max_tokens=4),
    )


def faulty_manifests(manifest: Any) -> dict[str, Any]:
    """By what is named: a tensor that is not sent, one of another layer, one that is older than
    its digest."""
    k, up, norm = (
        "model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight",
        "model.norm.weight",
    )  # fmt: skip

    def entries(change: Any) -> Any:
        part = manifest.parts[0]
        changed = tuple(new for entry in part.entries if (new := change(entry)) is not None)
        return dataclasses.replace(manifest, parts=(dataclasses.replace(part, entries=changed),))

    offsets = {entry.name: entry.offset for entry in manifest.parts[0].entries}
    other = offsets[up.replace("layers.1", "layers.2")]
    digests = dict(manifest.digests)
    digests[norm] = digests[norm]._replace(value=digests[norm].value ^ 1)
    return {
        k: entries(lambda entry: None if entry.name == k else entry),
        up: entries(
            lambda entry: dataclasses.replace(entry, offset=other) if entry.name == up else entry
        ),
        norm: dataclasses.replace(manifest, digests=digests),
    }


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_the_gap_to_the_probe(tmp_path: Path, make_job: Any, make_titan: Any) -> None:
    from forgedsl_runtime import meshes
    from forgedsl_runtime.endpoints import ServiceError
    from forgedsl_runtime.services.generator import PROBE_GAPS, GeneratorClient
    from forgedsl_runtime.temporary_files import remove_buffers

    services = {"twice": generator("twice", replicas=2), "halves": generator("halves", tp=2)}
    job = make_job(
        services={"trainer": make_titan(lr=3e-3), **services},
        losses={"recorded": recorded_loss()},
    )

    loads: list[list[int]] = []

    async def sample(client: Any) -> list[Any]:
        sampling = client.service.sampling
        tasks = [asyncio.create_task(client.sample(r, sampling, i)) for i, r in enumerate(REQUESTS)]
        await asyncio.sleep(0)
        loads.append([len(replica.outstanding) for replica in client.replicas])
        return await asyncio.gather(*tasks)

    named: list[tuple[str, str]] = []

    async def main() -> tuple[list[list[Any]], list[Any], str]:
        fleet = meshes.spawn(job, tmp_path, tmp_path, {})
        clients = [
            GeneratorClient(service, fleet.samplers[name], lambda *_: None)
            for name, service in services.items()
        ]
        trainer = fleet.trainers["trainer"]
        try:
            await meshes.setup(fleet, tmp_path, "arrival", None, lambda *_: None)
            await asyncio.gather(*(client.start() for client in clients))
            same = [await sample(client) for client in clients]
            running = [asyncio.create_task(sample(client)) for client in clients]
            arrivals = []
            for _ in range(3):
                manifest = await trainer.first("publish")
                for mesh in (replica.mesh for client in clients for replica in client.replicas):
                    arrivals.append(await mesh.one(0, "load", manifest, True))
                await trainer.first("step", recorded_batch(), "recorded")
            done = await asyncio.gather(*running)
            assert all(len(c.token_ids) == len(c.logprobs) > 0 for c in (*done[0], *done[1]))
            newer = await trainer.first("publish")
            changed = dataclasses.replace(newer, probe=manifest.probe)
            with pytest.raises(ServiceError) as refused:
                await clients[1].load(changed, keep=False)
            for name, faulty in faulty_manifests(newer).items():
                for client in clients:
                    with pytest.raises(ServiceError) as refusal:
                        await client.load(faulty, keep=False)
                    named.append((name, str(refusal.value)))
                assert (await clients[0].load(newer, keep=False)).proved == len(newer.digests)
            lost = dataclasses.replace(newer, transport="nowhere")
            with pytest.raises(ServiceError, match="nowhere"):
                await clients[0].load(lost, keep=False)
            return same, arrivals, str(refused.value)
        finally:
            for client in clients:
                client.close()
            await trainer.call("close")
            for mesh in fleet.all_meshes():
                await mesh.stop()
            remove_buffers("arrival")

    same, arrivals, message = asyncio.run(main())
    assert loads[:2] == [[4, 4], [8]]
    assert max(each.gap for each in arrivals) < PROBE_GAPS["f32"] / 10
    assert "version 3 of the weights arrived damaged" in message
    assert {(each.proved, each.faults, each.placeless) for each in arrivals} == {(35, (), ())}
    for name, said in named:
        assert f"version 3 of the weights changed on its way by shm: {name}" in said, named
    for one, two in zip(*same, strict=True):
        assert one.token_ids == two.token_ids
        assert one.logprobs == pytest.approx(
            two.logprobs, **near(torch.float32, of_shipped("tiny_math", length=64), size=10.0)
        )


def test_an_engine_split_by_layers_is_refused_with_what_to_use(make_job: Any) -> None:
    from forgedsl_runtime.service_backend import check_supported

    deep = generator("deep").model_copy(update={"parallel": spec.VllmParallel(pp=2)})
    with pytest.raises(LaunchError, match=r"parallel\.pp = 2 .*use `parallel.tp` to split a model"):
        check_supported(make_job(services={"deep": deep}))


def test_the_gap_of_rounded_weights_is_held_against_the_first() -> None:
    assert probe_limit({"bf16"}, 0.001) == PROBE_GAPS["bf16"]
    assert probe_limit({"fp8", "bf16"}, None) == PROBE_GAPS["fp8"]
    assert probe_limit({"fp8", "bf16"}, 0.3) == pytest.approx(1.2)
    assert probe_limit({"fp8", "bf16"}, 0.01) == PROBE_GAPS["bf16"]
    assert probe_limit({"fp8", "bf16"}, 2.0) == PROBE_GAPS["fp8"]
