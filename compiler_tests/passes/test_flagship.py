"""grpo_math on the hosts it has a profile for, by the plan's numbers."""

from pathlib import Path

import pytest

from forgedsl.api import load
from forgedsl.cli.host import host_of
from forgedsl.lower.build import lower

PIPELINE = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
HOSTS = ("1xH200", "2xH200", "4xH200", "8xH200", "4x8xH200", "1xH100", "8xH100")


@pytest.fixture(scope="module", params=HOSTS)
def planned(request):
    host = host_of(request.param, "plan")
    loaded = load(PIPELINE, host=host)
    found = lower(
        loaded.checked,
        reporter=loaded.reporter,
        sources=loaded.sources,
        base_dir=PIPELINE.parent,
        host=host,
    )
    assert found is not None
    assert [d.code for d in loaded.reporter] == []
    return found.plan


def test_every_gpu_is_used(planned):
    used = {(p.host, gpu) for mesh in planned.meshes for p in mesh.places for gpu in p.gpus}
    assert len(used) == planned.host.hosts * planned.host.gpus


def test_every_gpu_has_15_percent_to_spare(planned):
    assert all(store.share < 0.86 for store in planned.memory.stores)


def test_the_reference_is_with_the_trainer_and_takes_a_small_part_of_a_step(planned):
    assert planned.mesh("reference").places == planned.mesh("trainer").places
    seconds = {stage.service: stage.seconds for stage in planned.cost.stages}
    assert seconds["reference"] < seconds["trainer"] / 3  # one pass of the three of training
    both = seconds["reference"] + seconds["trainer"]
    if planned.cost.step_seconds > 1.01 * both:  # otherwise the two of them are the whole step
        assert planned.cost.busy("reference") < 0.2
