"""An engine adds a published adapter to its base: it samples what merged weights sample, proofs
name what is not swapped, and requests go on under the newer adapter."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from test_family_logits import HEADS, printed
from test_trainer_ranks import ADDITIONS, EPS, recorded_batch, recorded_loss
from test_weight_arrival import REQUESTS, generator
from tolerance import near, of_shipped

from forgedsl.lower import job as spec
from forgedsl.shipped import shipped_root
from forgedsl_runtime.services.generator import PROBE_GAPS

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": HEADS, "llama3": HEADS | {"tied": False},
    "smollm3": HEADS | {"layers": 4, "no_rope_interval": 2}, "qwen2": HEADS, "seed_oss": HEADS,
    "smollm2": HEADS, "mistral": HEADS,
}  # fmt: skip
DOWN = "model.layers.1.mlp.down_proj.lora_{}.weight"
LR = 3e-3
LORA = spec.Lora(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def found() -> Any:
    pytest.importorskip("vllm")
    return printed("published_adapter.py", str(shipped_root() / "models/tiny_math"))


def test_log_probs_are_those_of_merged_weights(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from family_parity import published

    every = os.environ.get("FORGE_DEEP") == "1"
    chosen = list(FAMILIES) if every else list(FAMILIES)[:3]
    for name in chosen:
        published(name, FAMILIES[name], tmp_path / name)
    told = printed("family_adapters.py", *(str(tmp_path / name) for name in chosen))
    assert list(told) == chosen
    for each in told.values():
        assert each["places"]
        assert each["gap"] < 5e-6
        assert each["moved"] > 0.1


def test_the_base_is_loaded_once_and_proved(found: Any) -> None:
    assert not found["random"]
    assert found["proofs"]["base"]["base"] == 35
    assert found["proofs"]["another base"]["base_faults"] == [
        "model.norm.weight has other values in the engine (model.norm)"
    ]


@pytest.mark.parametrize("name", ["right", "after not swapped", "after fused not swapped",
                                  "right again"])  # fmt: skip
def test_a_right_publication_is_proved(found: Any, name: str) -> None:
    said = found["proofs"][name]
    assert (said["proved"], said["faults"], said["placeless"]) == (42, [], [])


@pytest.mark.parametrize("name", ["not swapped", "left out"])
def test_a_layer_that_is_not_swapped_is_named(found: Any, name: str) -> None:
    assert found["proofs"][name]["faults"] == [
        f"{DOWN.format(half)} has other values in the engine (model.layers.1.mlp.down_proj)"
        for half in "AB"
    ]


def test_parts_of_a_fused_layer_are_named(found: Any) -> None:
    faults = found["proofs"]["fused not swapped"]["faults"]
    assert {each.split(" has ")[0] for each in faults} == {
        f"model.layers.0.self_attn.{part}_proj.lora_{half}.weight"
        for part in "qkv" for half in "AB"
    }  # fmt: skip


def test_numbers_beyond_the_rank_of_the_adapter_are_named(found: Any) -> None:
    (fault,) = found["proofs"]["beyond its rank"]["faults"]
    assert fault.startswith(DOWN.format("B"))


def test_requests_go_on_under_the_newer_adapter(found: Any) -> None:
    """As if the whole text had been scored under it, to rounding. With `keep`, keys and values of
    the older adapter stay."""
    again, kept = found["crossing"]["False"], found["crossing"]["True"]
    rounding = near(torch.float32, of_shipped("tiny_math", length=64), size=10.0)["abs"]
    assert min(again["tokens"]) > 20
    for each in (again, kept):
        (first_before, first_after), (second_before, _) = each["apart"]
        assert first_before < rounding
        assert first_after > 0.1
        assert second_before > 0.1
    assert again["apart"][1][1] < rounding
    assert kept["apart"][1][1] > 0.1


def test_the_fast_path_samples_what_vllm_samples(found: Any) -> None:
    assert found["ours"] == found["theirs"]
    assert found["ours short"] > 50
    assert found["theirs short"] == 0


def lora_job(make_job: Any, make_titan: Any, **services: spec.VllmService) -> spec.Job:
    """A trainer that publishes its adapter to the first of these services."""
    trainer = make_titan(lr=LR, eps=EPS).model_copy(update={"lora": LORA})
    sync = spec.Node(
        id="sync", name="sync", op="sync", target="trainer", to=next(iter(services)), level="batch",
        weights="adapter", origin="x.forge:1:1",
    )  # fmt: skip
    return make_job(
        services={"trainer": trainer, **services}, losses={"recorded": recorded_loss()},
        nodes=(sync,),
    )  # fmt: skip


def faulty_manifests(manifest: Any) -> dict[str, Any]:
    """By the first tensor that is named: one that is not sent, one of another layer, one that is
    older than its digest."""
    (part,) = manifest.parts
    offsets = {entry.name: entry.offset for entry in part.entries}
    missing, moved, older = (
        DOWN.format("A"), "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.2.mlp.up_proj.lora_B.weight",
    )  # fmt: skip

    def entries(change: Any) -> Any:
        changed = tuple(new for entry in part.entries if (new := change(entry)) is not None)
        return dataclasses.replace(manifest, parts=(dataclasses.replace(part, entries=changed),))

    other = offsets[moved.replace("layers.0", "layers.1")]
    digests = dict(manifest.digests)
    digests[older] = digests[older]._replace(value=digests[older].value ^ 1)
    return {
        missing: entries(lambda entry: None if entry.name == missing else entry),
        moved: entries(
            lambda entry: dataclasses.replace(entry, offset=other) if entry.name == moved else entry
        ),
        older: dataclasses.replace(manifest, digests=digests),
    }


def test_adapters_arrive_in_engines_on_meshes(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    """In one engine, and in one whose layers are split over two ranks."""
    pytest.importorskip("vllm")
    from forgedsl_runtime import meshes
    from forgedsl_runtime.endpoints import ServiceError
    from forgedsl_runtime.services.generator import GeneratorClient
    from forgedsl_runtime.temporary_files import remove_buffers

    services = {
        name: generator(name, tp=tp).model_copy(update={"adapter_rank": LORA.rank})
        for name, tp in (("whole", 1), ("halves", 2))
    }
    job = lora_job(make_job, make_titan, **services)
    named: list[tuple[str, str]] = []

    async def sample(client: Any) -> list[Any]:
        sampling = client.service.sampling
        return await asyncio.gather(
            *(client.sample(each, sampling, i) for i, each in enumerate(REQUESTS))
        )

    async def main() -> tuple[list[Any], list[Any], int]:
        fleet = meshes.spawn(job, tmp_path, tmp_path, {})
        clients = [
            GeneratorClient(service, fleet.samplers[name], lambda *_: None)
            for name, service in services.items()
        ]
        trainer = fleet.trainers["trainer"]
        try:
            await meshes.setup(fleet, tmp_path, "adapters", None, lambda *_: None)
            await asyncio.gather(*(client.start() for client in clients))
            arrivals = []
            for _ in range(3):
                manifest = await trainer.first("publish")
                arrivals += [await client.load(manifest, keep=True) for client in clients]
                await trainer.first("step", recorded_batch(), "recorded")
            newer = await trainer.first("publish")
            for name, faulty in faulty_manifests(newer).items():
                for client in clients:
                    with pytest.raises(ServiceError) as refusal:
                        await client.load(faulty, keep=False)
                    named.append((name, str(refusal.value)))
            for client in clients:
                assert (await client.load(newer, keep=False)).proved == len(newer.digests)
            return arrivals, [await sample(client) for client in clients], newer.num_bytes
        finally:
            for client in clients:
                client.close()
            await trainer.call("close")
            for mesh in fleet.all_meshes():
                await mesh.stop()
            remove_buffers("adapters")

    arrivals, same, size = asyncio.run(main())
    assert {(each.proved, each.faults, each.placeless) for each in arrivals} == {(42, (), ())}
    assert [each.base for each in arrivals] == [35, 35, 0, 0, 0, 0]
    assert max(each.gap for each in arrivals) < PROBE_GAPS["f32"] / 10
    assert size < 150_000  # the weights are 2.4 MB
    for name, said in named:
        assert f"version 3 of the weights changed on its way by shm: {name}" in said, named
    for one, two in zip(*same, strict=True):
        assert one.token_ids == two.token_ids
        assert one.logprobs == pytest.approx(
            two.logprobs, **near(torch.float32, of_shipped("tiny_math", length=64),
                                 size=10.0)
        )  # fmt: skip


SPLIT = {
    "one": {}, "dp_shard": {"dp_shard": 2}, "tp": {"tp": 2}, "pp": {"pp": 2},
}  # fmt: skip


def test_trainers_on_any_ranks_publish_the_same_adapter_and_base(
    tmp_path: Path, make_job: Any, make_titan: Any
) -> None:
    """Before the first step B is 0, and A is drawn alike. After it, B is too, to rounding."""
    pytest.importorskip("torchtitan")
    from forgedsl_runtime import meshes
    from forgedsl_runtime.temporary_files import remove_buffers
    from forgedsl_runtime.transports.registry import open_weights

    async def published(split: dict[str, int]) -> tuple[Any, dict[str, torch.Tensor]]:
        job = lora_job(make_job, make_titan, generator=generator("generator"))
        procs = 2 if split else 1
        trainer = job.services["trainer"].model_copy(
            update={
                "parallel": spec.TitanParallel(**split),
                "mesh": spec.Mesh(name="trainer", procs=procs, device="cpu"),
            }
        )
        # no engine is started, so its dtype is the trainer's
        sync = job.nodes[0].model_copy(update={"to": "trainer"})
        only = job.model_copy(update={"services": {"trainer": trainer}, "nodes": (sync,)})
        fleet = meshes.spawn(only, tmp_path, tmp_path, {})
        mesh = fleet.trainers["trainer"]
        try:
            await meshes.setup(fleet, tmp_path, "ranks", None, lambda *_: None)
            first = await mesh.first("publish")
            await mesh.first("step", recorded_batch(), "recorded")
            second = await mesh.first("publish")
            assert second.base == first.base
            found = {name: value.clone() for name, value in open_weights(second)}
            return first, found
        finally:
            await mesh.call("close")
            await mesh.stop()
            remove_buffers("ranks")

    made = {name: asyncio.run(published(split)) for name, split in SPLIT.items()}
    one, weights = made.pop("one")
    adam = spec.Optimizer(lr=LR, eps=EPS)
    close = tolerance.adam(
        torch.float32, ADDITIONS, updates=1, gradient=adam.max_norm, optimizer=adam
    )
    assert len(one.base) == 35
    assert len(one.digests) == len(weights) == 42
    for name, (first, found) in made.items():
        assert first.base == one.base, name
        assert first.digests == one.digests, name
        assert found.keys() == weights.keys()
        for layer, value in weights.items():
            torch.testing.assert_close(found[layer], value, **close)
