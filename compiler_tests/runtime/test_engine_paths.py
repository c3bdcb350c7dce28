"""The short way samples what vLLM samples: tokens, log-probs, ends and texts, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
HERE = Path(__file__).parent
TINY = HERE.parents[1] / "pipelines" / "models" / "tiny_math"


def result(script: str, *arguments: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(HERE / script), str(TINY), *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


@pytest.fixture(scope="module")
def ways() -> Any:
    return result("engine_paths.py")


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", ["plain", "watched", "swapped", "probed", "aborted"])
def test_both_ways_give_the_same(ways: Any, case: str) -> None:
    assert ways["ours"][case] == ways["theirs"][case]


@pytest.mark.full
def test_aborted_requests_are_not_answered_and_all_others_are(ways: Any) -> None:
    given = {*ways["ours"]["aborted"]["given"]}
    assert given == {str(i) for i in range(21)} - {"1", "4", "7", "20"}


@pytest.mark.full
def test_each_way_was_gone(ways: Any) -> None:
    assert ways["ours short"] > 50
    assert ways["theirs short"] == 0


@pytest.mark.full
def test_a_start_says_what_took_time_and_needs_no_other_process(ways: Any) -> None:
    assert [*ways["seconds"]] == ["imports", "model", "compile", "graphs"]
    assert all(seconds > 0 for seconds in ways["seconds"].values())


@pytest.mark.full
def test_lengths_that_were_not_seen_yet_take_no_memory_for_good(ways: Any) -> None:
    """Half as many new lengths would take half as much again. None at all, or less than before
    because an allocator gave pages back, is as good."""
    first, later = ways["grown"]
    assert later < first / 2, ways["grown"]


@pytest.mark.full
def test_what_a_request_has_is_known_at_a_swap(ways: Any) -> None:
    given = [*ways["ours"]["swapped"]["progress"], *ways["ours"]["watched"]["progress"]]
    assert [set(each.values()) for each in given] == [{5}, {20}, {4}]
    assert {"0", "1"} <= given[2].keys()  # those with stop strings too


@pytest.mark.full
def test_a_request_after_a_swap_finds_no_keys_of_older_weights(ways: Any) -> None:
    before, after = ways["salts"]
    assert before != after


@pytest.mark.full
@pytest.mark.timeout(240)
def test_schedules_are_those_of_vllm_in_random_histories() -> None:
    played = result("engine_schedules.py", "30")
    assert [one for one in played if not (one["steps"] and one["given"])] == []
    assert min(one["short"] for one in played) > 10
    assert sum(one["preempted"] for one in played) > 30


@pytest.mark.timeout(600)
@pytest.mark.parametrize("histories", [2, pytest.param(12, marks=pytest.mark.full)])
def test_decode_steps_are_those_of_vllm_in_random_histories(histories: int) -> None:
    """Schedules, tokens, log-probs, and the state that is left to vLLM's next step."""
    found = result("engine_decode_steps.py", str(histories), TRITON_INTERPRET="1")
    assert [one for one in found["played"] if not one["same"]] == []
    assert all(one["taken"] and one["ended"] for one in found["played"])
    assert sum(one["taken"] for one in found["played"]) > sum(
        one["steps"] / 4 for one in found["played"]
    )
    assert found["accepted"] == []  # with these features all steps are vLLM's
