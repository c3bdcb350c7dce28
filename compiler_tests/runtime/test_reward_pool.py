"""Reward calls on a real mesh; what a call can do to its process is in test_reward_process.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_reward_process import recipe, rollout


@pytest.mark.timeout(120)
def test_outcomes_come_back_and_a_pool_survives_its_calls(tmp_path: Path, make_job: Any) -> None:
    from forgedsl_runtime.actors.reward import Outcome, RewardPool
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    made = recipe(tmp_path, "ends", timeout=20.0)
    job = make_job(rewards=dict(made.rewards))

    async def main() -> list[list[Outcome]]:
        mesh = Mesh.spawn(
            service="ends",
            origin="x.forge:1:1",
            name="rewards",
            size=1,
            actor=RewardPool,
            args=(job, ("ends",), str(tmp_path)),
            kwargs={},
            start=bootstrap({"OMP_NUM_THREADS": "1"}, tmp_path / "rewards", "cpu"),
            logs=tmp_path / "rewards",
        )
        try:
            await mesh.call("setup")
            items = [(("ends",), rollout(text), "yes") for text in ("yes", "no", "yes")]
            answers = await mesh.one(0, "score", items)
            # torch takes 2 s and 184 MiB, and no reward pool needs it
            (member,) = await mesh.call("describe")
            assert "libtorch" not in Path(f"/proc/{member['pid']}/maps").read_text()
            return answers
        finally:
            await mesh.stop()

    found = [outcome for (outcome,) in asyncio.run(main())]
    assert [outcome.value for outcome in found] == [1.0, None, 1.0]
    assert found[1].error == "its process ended with exit code 7 in the call"
