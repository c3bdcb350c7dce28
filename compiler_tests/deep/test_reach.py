"""grpo_math.forge over hosts learns what it learns on one: 250 steps each way.

FORGE_DEEP=1 runs them, three to fifteen minutes a run on two cores.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hurt import PIPELINES, WIDE, Hurt
from test_slurm import slurm  # noqa: F401  a fixture

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(5400),
]
SLURM = ('launcher=slurm("main", time=60min)', "cluster.hosts=2")
CLOSE = 0.03
"""between two accuracies of 1,000 drawn answers: three standard errors at 0.95"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> float:
    return accuracy(tmp_path_factory.mktemp("alone"), ("cluster.hosts=1",))


def accuracy(folder: Path, words: tuple[str, ...]) -> float:
    """On held-out rows, after the last step."""
    run = Hurt(folder, PIPELINES / "grpo_math.forge", words)
    assert run.end(3600) == 0, run.said()
    found: float = run.rows()[-1]["eval/held_out"]
    return found


def test_three_hosts_reach_the_accuracy_of_one(tmp_path: Path, alone: float) -> None:
    assert accuracy(tmp_path, WIDE) == pytest.approx(alone, abs=CLOSE)


def test_two_nodes_of_slurm_reach_the_accuracy_of_one_host(
    tmp_path: Path,
    alone: float,
    slurm: Any,  # noqa: F811
) -> None:
    assert accuracy(tmp_path, SLURM) == pytest.approx(alone, abs=CLOSE)
