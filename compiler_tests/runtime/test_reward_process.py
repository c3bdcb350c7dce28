"""The process of a reward: values, errors, time limits, memory, death, calls at the same time."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime import worker_process as process_module
from forgedsl_runtime.data_types import Prompt, Rollout
from forgedsl_runtime.rewards.process import RewardProcess
from forgedsl_runtime.rewards.worker import Outcome, Recipe

REWARDS = """
import asyncio
import os
import signal
import sys
import time

running = most = 0

def good(prompt, response, target):
    return float(response == target)

def fails(prompt, response, target):
    return 1.0 if response == target else 1.0 / 0.0

def forgets(prompt, response, target):
    if response == target:
        return 1.0

def spins(prompt, response, target):
    while response != target:
        pass
    return 1.0

def sleeps(prompt, response, target):
    if response != target:
        time.sleep(30)
    return 1.0

def stays(prompt, response, target):
    while response != target:
        try:
            time.sleep(30)
        except BaseException:  # swallows the end of its time
            pass
    return 1.0

def exits(prompt, response, target):
    if response != target:
        sys.exit(3)
    return 1.0

def ends(prompt, response, target):
    if response != target:
        os._exit(7)
    return 1.0

def killed(prompt, response, target):
    if response != target:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0

def eats(prompt, response, target):
    return 1.0 if response == target else float(len(bytearray(1 << 30)))

async def waits(prompt, response, target):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(30 if response == "no" else 0.05)
    running -= 1
    return float(most)
"""


def rollout(text: str) -> Rollout:
    prompt = Prompt(group=0, row=0, text="p", token_ids=[1], target="yes")
    return Rollout(
        group=0, sibling=0, prompt=prompt, token_ids=[1], logprobs=[0.0], mask=[True], text=text,
        truncated=False, version_min=0, version_max=0, started=0.0, finished=0.0,
    )  # fmt: skip


def recipe(tmp_path: Path, name: str, text: str = REWARDS, **more: Any) -> Recipe:
    path = tmp_path / "rewards.py"
    path.write_text(text)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    given = ("prompt", "response", "target")
    reward = spec.Reward(
        kind="python", function=name, path="rewards.py", sha256=sha, positional=given, **more
    )
    return Recipe(rewards={name: reward}, program="", job_dir=str(tmp_path))


def outcomes(made: Recipe, texts: list[str], *, together: bool = False) -> list[Outcome]:
    (name,) = made.rewards

    async def main() -> list[Outcome]:
        process = RewardProcess(made)
        try:
            calls = [process.call(((name,), rollout(text), "yes")) for text in texts]
            found = await asyncio.gather(*calls) if together else [await call for call in calls]
            return [one for (one,) in found]
        finally:
            process.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", "ZeroDivisionError: float division by zero (rewards.py:14)"),
        ("forgets", "returned None, expected a number"),
        ("spins", "no answer within 0.5 s"),
        ("sleeps", "no answer within 0.5 s"),
        ("stays", "and it ignored the interrupt: the process was killed"),
        ("exits", "SystemExit: 3: a reward must return"),
        ("ends", "its process ended with exit code 7 in the call"),
        ("killed", "its process was killed by SIGKILL in the call"),
    ],
)
def test_a_call_that_goes_wrong_costs_itself_alone(tmp_path: Path, name: str, words: str) -> None:
    found = outcomes(recipe(tmp_path, name, timeout=0.5), ["yes", "no", "yes"])
    assert [one.value for one in found] == [1.0, None, 1.0]
    assert words in found[1].error


@pytest.mark.full
def test_calls_behind_one_that_hangs_are_answered_before_it(tmp_path: Path) -> None:
    made = recipe(tmp_path, "waits", timeout=20.0, concurrency=4)

    async def main() -> int:
        process = RewardProcess(made)
        calls = [asyncio.ensure_future(process.call((("waits",), rollout(t), ""))) for t in TEXTS]
        await asyncio.wait(calls[1:])
        done = sum(call.done() for call in calls)
        process.close()
        await asyncio.wait(calls)
        return done

    assert asyncio.run(main()) == len(TEXTS) - 1


TEXTS = ["no", "yes", "yes", "yes", "yes", "yes"]


def test_asynchronous_calls_run_together_up_to_the_bound(tmp_path: Path) -> None:
    found = outcomes(recipe(tmp_path, "waits", concurrency=3), ["yes"] * 9, together=True)
    assert max(one.value or 0 for one in found) == 3.0


def test_an_asynchronous_call_has_a_time_limit_of_its_own(tmp_path: Path) -> None:
    made = recipe(tmp_path, "waits", concurrency=3, timeout=0.5)
    found = outcomes(made, ["yes", "no", "yes"], together=True)
    assert [one.error for one in found] == ["", "no answer within 0.5 s", ""]


PROGRAM = """
import torch


def reward_short(r):
    return 1.0 / r.num_tokens


def reward_root(r):
    return float(torch.sqrt(torch.tensor(4.0)))
"""


def test_a_reward_of_the_program_imports_torch_only_where_it_uses_it(tmp_path: Path) -> None:
    async def value(name: str) -> tuple[float | None, bool]:
        reward = spec.Reward(kind="program", function=f"reward_{name}", timeout=60.0)
        made = Recipe(rewards={name: reward}, program=PROGRAM, job_dir=str(tmp_path))
        before = set(psutil.Process().children())
        process = RewardProcess(made)
        try:
            (found,) = await process.call(((name,), rollout("yes"), "yes"))
            (new,) = set(psutil.Process().children()) - before
            return found.value, "libtorch" in Path(f"/proc/{new.pid}/maps").read_text()
        finally:
            process.close()

    assert asyncio.run(value("short")) == (1.0, False)
    assert asyncio.run(value("root")) == (2.0, True)


def test_memory_over_the_limit_fails_the_call_and_replaces_the_process(tmp_path: Path) -> None:
    found = outcomes(recipe(tmp_path, "eats", memory=512 << 20), ["no", "yes"])
    assert found[0].error.endswith("needs more memory than is available (`memory` is 512 MiB)")
    assert found[1].value == 1.0


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nowhere\n", "No module named 'nowhere'"),
        ("x = 1\n1 / 0\n", r"\): importing rewards.py:2 failed: ZeroDivisionError"),
        (
            "import sys\nsys.exit(2)\n",
            r"importing rewards.py:2 ends the process \(SystemExit: 2\); .*",
        ),
        (
            "import os\nos._exit(4)\n",
            r"reward f .*: importing rewards.py:2 ends the process .*os._exit\(4\)\).*__main__",
        ),
        (
            "import time\ntime.sleep(600)\n",
            r"reward f \(f of rewards.py\): importing rewards.py:2 did not finish .* into the",
        ),
        (
            "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
            "time.sleep(600)\n",
            r"reward f \(f of rewards.py\): not loaded within 6 s; check for code that does not",
        ),
    ],
)
def test_what_cannot_be_imported_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.setattr(process_module, "LOADING", 6.0)
    process = RewardProcess(recipe(tmp_path, "f", source))
    with pytest.raises(LaunchError, match=said):
        asyncio.run(process.start())


def test_a_process_that_ends_while_loading_says_so(tmp_path: Path) -> None:
    process = RewardProcess(recipe(tmp_path, "f", "import os\nos.kill(os.getpid(), 9)\n"))
    said = r"\(f of rewards.py\): the process ended .* loading: its process was killed by SIGKILL"
    with pytest.raises(LaunchError, match=said):
        asyncio.run(process.start())


def test_what_a_reward_starts_in_a_session_of_its_own_ends_with_it(tmp_path: Path) -> None:
    source = (
        "import subprocess\ndef f(prompt, response, target):\n"
        "    return subprocess.Popen(['sleep', '600'], start_new_session=True).pid\n"
    )
    (found,) = outcomes(recipe(tmp_path, "f", source), ["no"])
    assert found.value
    with suppress(psutil.NoSuchProcess):  # init takes a moment to collect it
        psutil.Process(int(found.value)).wait(30)
