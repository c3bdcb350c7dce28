"""What `forgec run --stub` says before it starts: how long it takes, and what shortens it."""

from pathlib import Path

import pytest

from forgedsl.cli.latencies import latencies_of
from forgedsl.cli.planning import plan_file
from forgedsl.cli.rehearse import outlook

GRPO = Path(__file__).parents[2] / "pipelines/grpo_math.forge"


def said(profile: str, *overrides: str, assume: tuple[str, ...] = ()) -> list[str]:
    lowered = plan_file(GRPO, profile=profile, overrides=overrides).lowered
    assert lowered is not None
    return outlook(lowered.job, latencies_of(lowered, list(assume))).splitlines()


@pytest.mark.full
def test_a_long_rehearsal_says_how_long_and_what_holds_it_up() -> None:
    what, length, faster = said("cluster", "reference.device=cpu")
    assert what == "rehearses grpo_math (profile cluster) in real time: 500 steps"
    assert " h (simulated, latencies from the plan's cost model)" in length
    assert faster.startswith("  faster: --assume reference.logprobs_token=0 (reference is busy ")


@pytest.mark.full
@pytest.mark.parametrize(
    ("assume", "way"),
    [
        (("generator.tokens=900",), "--assume generator.tokens=20 (generator is busy "),
        (("trainer.token=0.001",), "--assume trainer.token=0 (trainer is busy "),
    ],
)
def test_what_is_advised_is_about_the_busiest_part(assume: tuple[str, ...], way: str) -> None:
    assert way in said("cluster", "beta=0.0", assume=assume)[2]


def test_what_takes_no_time_is_not_advised_about() -> None:
    free = ("generator.tokens=2", "trainer.token=0", "reference.logprobs_token=0")
    few = ("schedule.steps=100000", "prompts=4", "group=4")
    assert "--assume" not in said("cpu", *few, assume=free)[2]


def test_a_short_rehearsal_needs_no_advice() -> None:
    assert len(said("cpu", "schedule.steps=5")) == 2
