"""Runs over three hosts that are hurt at random: services and a host, then everything at once.

FORGE_DEEP=1 runs them (ten minutes each on two cores); FORGE_SEED picks other moments.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from hurt import PIPELINES, SMALL, WIDE, Hurt, hard, synchronous

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(3600),
]
SEED = int(os.environ.get("FORGE_SEED", "17"))
STEPS, KILLS, ENDS = 200, 8, 5


def test_200_steps_live_through_8_kills_of_services_and_of_a_host(tmp_path: Path) -> None:
    """Any moment may be hit, those of a start included; no replica and no pool dies a fourth time,
    which would end the run by design."""
    rng = random.Random(SEED)
    gone = rng.choice((1, 2))
    bag = [mesh for mesh in ("gen", "gen1", "rewards") for _ in range(2)]
    targets = [*rng.sample(bag, KILLS - 2), rng.choice(("gen", "gen1")), "host"]
    rng.shuffle(targets)
    moments = sorted(rng.sample(range(5, STEPS - 10), KILLS))
    run = Hurt(tmp_path, PIPELINES / "grpo_math.forge", (*SMALL, *WIDE, f"schedule.steps={STEPS}"))
    for step, target in zip(moments, targets, strict=True):
        run.step(step)
        time.sleep(rng.uniform(0, 0.5))
        if target == "host":
            run.host(gone).kill()
        else:
            run.until(lambda name=target: run.pids(name), 120)
            hard(run.pids(target)[-1])
        print(f"step {step}: {target} {gone if target == 'host' else ''}", flush=True)
    assert run.end() == 0, run.said()
    assert [row["step"] for row in run.rows()] == list(range(1, STEPS + 1))
    steps = run.events("step.end")
    trained = Counter(group for event in steps for group in event["groups"])
    assert set(trained.values()) == {1}
    drawn = {event["group"] for event in run.events("group.drawn")}
    dropped = {event["group"] for event in run.events("group.dropped")}
    assert not dropped & set(trained)
    assert len(drawn - dropped - set(trained)) <= 8, "more than the credits are unaccounted for"
    assert max(age for event in steps for age in event["ages"]) <= 1
    lost = Counter(event["mesh"] for event in run.events("service.lost"))
    killed = Counter(target for target in targets if target != "host")
    assert all(lost[mesh] >= count for mesh, count in killed.items()), lost
    # what was on the host is lost once more only if it was up: one may just be starting there
    assert [event["host"] for event in run.events("host.lost")] == [gone]
    assert run.left(10) == []


def test_a_run_killed_whole_5_times_ends_with_the_weights_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    """Four ends at random steps, one while the processes of the resumed run start."""
    steps, rng = 60, random.Random(SEED)
    words = (*SMALL, *WIDE, f"schedule.steps={steps}", "checkpoint.every=7")
    program = synchronous(tmp_path)
    straight = Hurt(tmp_path, program, words, run="straight")
    assert straight.end() == 0, straight.said()
    killed = Hurt(tmp_path, program, words, run="killed")
    moments = sorted(rng.sample(range(8, steps - 2), ENDS - 1))
    for number, step in enumerate(moments):
        killed.step(step)
        time.sleep(rng.uniform(0, 0.5))
        killed.kill_tree()
        assert killed.left(5) == []
        killed.resume()
        if number == 1:
            time.sleep(rng.uniform(1, 15))
            killed.kill_tree()
            killed.resume()
    assert killed.end() == 0, killed.said()
    history, expected = killed.history(), straight.history()
    groups = Counter(group for event in history.values() for group in event["groups"])
    assert groups == Counter(range(4 * steps))
    assert {n: e["groups"] for n, e in history.items()} == {
        n: e["groups"] for n, e in expected.items()
    }
    assert killed.weights() == straight.weights() != {}
