"""New weights arrive whole in a running engine; weights that are not the sender's are refused."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from test_trainer_ranks import recorded_batch, recorded_loss

from forgedsl.lower import job as spec


@pytest.mark.timeout(240)
def test_the_gap_to_the_probe(tmp_path: Path, make_job: Any, make_titan: Any) -> None:
    from forgedsl.runtime import meshes
    from forgedsl.runtime.endpoints import ServiceError
    from forgedsl.runtime.services.generator import PROBE_GAPS, GeneratorClient

    generator = spec.VllmService(
        model="policy",
        mesh=spec.Mesh(name="gen", device="cpu"),
        dtype="f32",
        sampling=spec.Sampling(max_tokens=4),
    )
    job = make_job(
        services={"trainer": make_titan(lr=3e-3), "generator": generator},
        losses={"recorded": recorded_loss()},
    )

    async def main() -> tuple[list[float], str]:
        fleet = meshes.spawn(job, tmp_path, tmp_path)
        client = GeneratorClient(generator, fleet.generators["generator"], lambda *_: None)
        (replica,) = fleet.generators["generator"]
        trainer = fleet.titans["trainer"]
        try:
            await meshes.setup(fleet, tmp_path, "arrival", None, lambda *_: None)
            await client.start()
            running = [
                asyncio.create_task(client.sample([5, 6, 7 + i], generator.sampling, i))
                for i in range(8)
            ]
            gaps = []
            for _ in range(3):
                manifest = await trainer.first("publish")
                gaps.append(await replica.first("load", manifest, True))
                await trainer.first("step", recorded_batch(), "recorded")
            done = await asyncio.gather(*running)
            assert all(len(c.token_ids) == len(c.logprobs) > 0 for c in done)
            newer = await trainer.first("publish")
            changed = dataclasses.replace(newer, probe=manifest.probe)
            with pytest.raises(ServiceError) as refused:
                await client.load(changed, reset_prefix_cache=True)
            return gaps, str(refused.value)
        finally:
            client.close()
            await trainer.call("close")
            for mesh in fleet.all():
                await mesh.stop()

    gaps, message = asyncio.run(main())
    assert max(gaps) < PROBE_GAPS["f32"] / 10
    assert "version 3 did not arrive whole" in message
