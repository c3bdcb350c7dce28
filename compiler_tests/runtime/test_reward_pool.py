"""Reward calls on a real mesh: values, errors, and calls that never come back."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from forgedsl.lower import job as spec
from forgedsl.runtime.items import Prompt, Rollout

REWARDS = """
import time

def good(prompt, response, target):
    return float(response == target)

def fails(prompt, response, target):
    return 1.0 if response == target else 1.0 / 0.0

def spins(prompt, response, target):
    while response != target:
        pass
    return 1.0

def blocks(prompt, response, target):
    if response != target:
        time.sleep(30)
    return 1.0

async def waits(prompt, response, target):
    return 0.5
"""


def rollout(text: str) -> Rollout:
    prompt = Prompt(group=0, row=0, text="p", token_ids=[1], target="yes")
    return Rollout(
        group=0,
        sibling=0,
        prompt=prompt,
        token_ids=[1],
        logprobs=[0.0],
        mask=[True],
        text=text,
        truncated=False,
        version_min=0,
        version_max=0,
        started=0.0,
        finished=0.0,
    )


@pytest.mark.timeout(120)
def test_values_errors_and_time_limits(tmp_path: Path, make_job: Any) -> None:
    from forgedsl.runtime.actors.reward import Outcome, RewardPool
    from forgedsl.runtime.upstream.monarch import Mesh, bootstrap

    path = tmp_path / "inputs" / "rewards.py"
    path.parent.mkdir()
    path.write_text(REWARDS)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    names = ("good", "fails", "spins", "blocks", "waits")
    rewards = {
        name: spec.Reward(
            kind="python", function=name, path="inputs/rewards.py", sha256=sha, timeout=0.5
        )
        for name in names
    }
    job = make_job(rewards=rewards)

    async def main() -> list[list[Outcome]]:
        mesh = Mesh.spawn(
            service="rewards",
            origin="x.forge:1:1",
            name="rewards",
            size=1,
            actor=RewardPool,
            args=(job, names, str(tmp_path)),
            kwargs={},
            start=bootstrap({"OMP_NUM_THREADS": "1"}, tmp_path / "rewards", "cpu"),
            logs=tmp_path / "rewards",
        )
        try:
            await mesh.call("setup")
            items = [(names, rollout(text), "yes") for text in ("yes", "no", "yes")]
            return await mesh.one(0, "score", items)
        finally:
            await mesh.stop()

    found = dict(zip(names, zip(*asyncio.run(main()), strict=True), strict=True))
    assert [o.value for o in found["good"]] == [1.0, 0.0, 1.0]
    assert [o.value for o in found["waits"]] == [0.5, 0.5, 0.5]
    for name, words in {
        "fails": "ZeroDivisionError",
        "spins": "no answer within 0.5 s",
        "blocks": "no answer within 0.5 s",
    }.items():
        assert [o.value for o in found[name]] == [1.0, None, 1.0]
        assert words in found[name][1].error
