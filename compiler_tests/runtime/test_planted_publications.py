"""Faults planted into publications to a running engine are named, each at once: in the first
publication of a run, and in later ones, over the transports of a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from test_gaps import node

from forgedsl_runtime.guards import GapGuard, GuardError
from forgedsl_runtime.services.generator import PROBE_GAPS

SCRIPT = Path(__file__).parent / "planted_publications.py"
EMBED, DOWN = "model.embed_tokens.weight", "model.layers.{}.mlp.down_proj.weight"
LATER = {
    "not_sent": [EMBED], "wrong_shard": [EMBED], "one_bit": [EMBED], "cast_twice": [EMBED],
    "swapped": [DOWN.format(0), DOWN.format(1)], "sent_twice": [DOWN.format(1)],
}  # fmt: skip
"""by fault: the tensors that are named"""


def printed(folder: Path, start: str) -> dict[str, Any]:
    pytest.importorskip("vllm")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), start], capture_output=True, text=True,
        timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.split("RESULT")[1])
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said to an engine that started from random weights, as engines do that a trainer
    publishes to."""
    return printed(tmp_path_factory.mktemp("random"), "random")


@pytest.fixture(scope="module")
def of_folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said to an engine that loaded the folder of the trainer itself."""
    return printed(tmp_path_factory.mktemp("folder"), "folder")


def apart(found: dict[str, Any]) -> float:
    """The largest difference of the log-probs of the fixed text, with and without the fault."""
    pairs = zip(found["unpacked"]["logprobs"], found["right"]["logprobs"], strict=True)
    return max(abs(a - b) for a, b in pairs)


def test_a_first_publication_that_brings_nothing_is_named(told: dict[str, Any]) -> None:
    assert told["random"]
    assert len(told["nothing"]["faults"]) == 35
    assert told["right"]["proved"] == 35


def test_a_tensor_left_out_of_the_first_publication_is_named(told: dict[str, Any]) -> None:
    (fault,) = told["left out"]["faults"]
    assert fault.startswith("model.layers.1.mlp.up_proj.weight has other values in the engine")


def test_what_the_engine_makes_of_its_weights_is_proved_too(told: dict[str, Any]) -> None:
    """The head is packed for a CPU. If that is left out, the digests are right, and the fixed text
    shows it, in the coarsest dtype too."""
    assert told["unpacked"]["faults"] == []
    assert apart(told) > max(PROBE_GAPS.values())


@pytest.mark.full
def test_an_engine_with_weights_of_its_own_hides_these_faults(of_folder: dict[str, Any]) -> None:
    """This is why engines start from random weights."""
    assert not of_folder["random"]
    assert len(of_folder["nothing"]["faults"]) < 35
    assert apart(of_folder) < PROBE_GAPS["f32"]


@pytest.mark.parametrize("fault", LATER)
@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_later_fault_is_named_and_the_next_publication_is_right(
    way: str, fault: str, told: dict[str, Any]
) -> None:
    faults = told[f"{way} {fault}"]["faults"]
    assert [text.split(" has other values")[0] for text in faults] == LATER[fault]
    assert told[f"{way} after {fault}"] == {"faults": [], "proved": 35}


@pytest.mark.parametrize("way", ["shm", "tcp"])
def test_a_buffer_of_the_version_before_is_named_in_every_tensor(
    way: str, told: dict[str, Any]
) -> None:
    assert len(told[f"{way} stale_buffer"]["faults"]) == 35
    assert told[f"{way} after stale_buffer"]["proved"] == 35


def test_a_publication_that_is_skipped_stops_the_run_at_its_first_step(
    told: dict[str, Any],
) -> None:
    """Nothing arrives, so no digest tells. Log-probs of age 0 differ by what an update changes."""
    guard = GapGuard("f32")
    assert guard.check(node(), 3.4e-7, proved=True) == ""
    with pytest.raises(GuardError, match="log-probs of trainer and of the sampler differ"):
        guard.check(node(), fmean(told["skipped"]), proved=False)
