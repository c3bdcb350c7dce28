"""Weights that three hosts hand on to four replicas, one of which dies, then the host of another.

FORGE_DEEP=1 runs it (three minutes on two cores).
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hurt import PIPELINES, SMALL, Hurt, hard

from forgedsl_runtime.temporary_files import SHM

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(1200),
]
STEPS = 80
FOUR = ("launcher=process", "cluster.hosts=3", "generator.replicas=4", f"schedule.steps={STEPS}")


class Held(Hurt):
    def held(self) -> Counter[str]:
        """Versions in shared memory, by whose they are: `tree-SERVICE-HOST`."""
        names = (path.name for path in SHM.glob(f"forgedsl-{self.ran.pid}-*-tree-*"))
        return Counter(name[name.index("tree") :].rsplit("-", 2)[0] for name in names)


def test_weights_reach_all_that_live_whoever_handed_them_on_before(tmp_path: Path) -> None:
    run = Held(tmp_path, PIPELINES / "grpo_math.forge", (*SMALL, *FOUR))
    run.step(5)
    hard(run.pids("gen")[-1])  # the first of host 1, and another replica's source
    run.step(15)
    run.until(lambda: run.events("service.lost"), 60)
    run.step(25)
    assert set(run.held().values()) == {2}
    run.host(2).kill()
    assert run.end() == 0, run.said()
    assert [row["step"] for row in run.rows()] == list(range(1, STEPS + 1))
    syncs = run.events("sync.end")
    assert {event["transport"] for event in syncs} == {"tree"}
    assert max(age for event in run.events("step.end") for age in event["ages"]) <= 1
    assert len(run.events("service.lost")) >= 2
    rates = [row.get("sync_bytes_per_s/generator", 0) for row in run.rows()]  # none ends in some
    assert sum(rate > 0 for rate in rates) >= STEPS // 2
    assert run.left(10) == []
