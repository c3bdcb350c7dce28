"""Agents that are programs: what they get, where they leave their reward, how they fail and end."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from test_agent_process import Pool, with_pool

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.environments.program import POOL, kill_orphans
from forgedsl_runtime.environments.worker import Reply, ServedEnvironment
from forgedsl_runtime.temporary_files import RUN


def program(folder: Path, script: str, **given: Any) -> ServedEnvironment:
    """A program of `script`, which is a shell script."""
    (folder / "inputs").mkdir(exist_ok=True)
    (folder / "inputs/a.sh").write_text(script, "utf-8")
    sha256 = hashlib.sha256(script.encode()).hexdigest()
    parts = given.pop("parts", ("reward",))
    command = given.pop("command", ("sh", "inputs/a.sh"))
    environment = spec.Environment(
        type_name="program", path="", sha256="", parts=parts, agent=True, deadline=60.0,
        scripts={"inputs/a.sh": sha256}, program=spec.AgentProgram(command=command, **given),
    )  # fmt: skip
    return ServedEnvironment(name="desk", environment=environment, job_dir=str(folder))


def ended(folder: Path, script: str, text: str = "1+1=", **given: Any) -> Reply:
    """How the trajectory of a program ends."""
    found: list[Reply] = []

    async def use(pool: Pool) -> None:
        found.append(await pool.end(text, target="2"))

    with_pool(program(folder, script, **given), use)
    return found[0]


def alive(pid: int) -> bool:
    """True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_gets_address_key_task_and_seed(tmp_path: Path) -> None:
    script = """
    set -e
    test "$OPENAI_BASE_URL" = "$OPENAI_API_BASE"
    test "$ANTHROPIC_BASE_URL/v1" = "$OPENAI_BASE_URL"
    test "$OPENAI_API_KEY" = "$ANTHROPIC_API_KEY"
    grep -q '"text": "1+1="' $FORGE_TASK
    grep -q '"target": "2"' $FORGE_TASK
    test "$FORGE_MODEL" = m
    test "$1" = "m at $OPENAI_BASE_URL"
    test "$MINE" = "key $OPENAI_API_KEY"
    test "$FORGE_SEED" -ge 0
    test -z "$(ls)"
    test "$HTTP_PROXY" = p
    echo $NO_PROXY | grep -q 127.0.0.1
    test -z "$SECRET"
    test "$GIVEN" = yes
    echo "some text"; echo 0.25; echo
    """
    os.environ.update(HTTP_PROXY="p", SECRET="s", GIVEN="yes")
    try:
        reply = ended(
            tmp_path, script, command=("sh", "inputs/a.sh", "{model} at {url}"),
            variables=("MINE=key {key}", "GIVEN"),
        )  # fmt: skip
    finally:
        for name in ("HTTP_PROXY", "SECRET", "GIVEN"):
            del os.environ[name]
    assert reply == Reply(value={"reward": 0.25})


REWARDS = [
    ('echo \'{"a": 1, "b": 0.5}\'', {"parts": ("a", "b")}, {"a": 1.0, "b": 0.5}),
    ("echo 0.5 > $FORGE_REWARD; echo done", {"reward": "file"}, {"reward": 0.5}),
    ("exit 0", {"reward": "exit"}, {"reward": 1.0}),
    ("exit 1", {"reward": "exit"}, {"reward": 0.0}),
    ("echo done", {"reward": "none", "parts": ()}, {}),
    ('test "$(cat)" = 1+1= && echo 1', {"stdin": True}, {"reward": 1.0}),
    ('test "$1" = 1+1= && echo 1', {"command": ("sh", "inputs/a.sh", "{task}")}, {"reward": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("script", "given", "value"), REWARDS)
def test_a_program_leaves_its_reward(
    tmp_path: Path, script: str, given: dict[str, Any], value: dict[str, float]
) -> None:
    assert ended(tmp_path, script, **given) == Reply(value=value)


def targeted(folder: Path, name: str) -> Reply:
    """How a program ends that gets the folder of the row, whose target is 2."""
    for each in (name, "20"):
        (folder / f"inputs/tasks/{each}").mkdir(parents=True)
        (folder / f"inputs/tasks/{each}/says").write_text("0.5")
    served = program(
        folder, 'cat "$1/says"', command=("sh", "inputs/a.sh", "inputs/tasks/{target}")
    )
    scripts = {**served.environment.scripts, "inputs/tasks/20/says": ""}
    environment = served.environment.model_copy(update={"scripts": scripts})
    found: list[Reply] = []

    async def use(pool: Pool) -> None:
        found.append(await pool.end("1+1=", target="2"))

    with_pool(dataclasses.replace(served, environment=environment), use)
    return found[0]


def test_a_program_gets_the_folder_of_the_row(tmp_path: Path) -> None:
    assert targeted(tmp_path, "2") == Reply(value={"reward": 0.5})


def test_a_row_whose_folder_is_missing_is_told_with_the_nearest(tmp_path: Path) -> None:
    said = targeted(tmp_path, "2x").error
    assert "the target '2' is no name in tasks; did you mean 2" in said


FAILURES = [
    ("echo 1; echo lost >&2; exit 3", {}, "lost (its program ended with exit code 3)"),
    ("echo 1; exit 2", {"reward": "exit"}, "1 (its program ended with exit code 2)"),
    ("kill -9 $$", {}, "(its program was killed by SIGKILL)"),
    ("echo done", {}, "of its program is neither a number nor a JSON object of parts: 'done'"),
    ("true", {}, "the last line of its program is neither a number nor a JSON object"),
    ("echo true", {}, "neither a number nor a JSON object of parts: 'true'"),
    ("echo NaN", {}, "which is not a finite number"),
    ("echo '{\"c\": 1}'", {}, "rewards ['c'], which `parts` does not list"),
    ("true", {"reward": "file"}, "its program wrote no file $FORGE_REWARD"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "given", "why"), FAILURES)
def test_a_program_that_leaves_none_has_failed(
    tmp_path: Path, script: str, given: dict[str, Any], why: str
) -> None:
    reply = ended(tmp_path, script, **given)
    assert why in reply.error
    assert (reply.ended, reply.collateral) == (False, False)


def test_output_is_logged_with_its_trajectory_and_bounded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "echo hello >&2; i=0; while [ $i -lt 6000 ]; do echo %080d; i=$((i+1)); done; echo 1"
    assert ended(tmp_path, script.replace("%080d", "x" * 80)) == Reply(value={"reward": 1.0})
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[desk ")]
    assert any(line.endswith("] hello") for line in lines)
    assert 3000 < len(lines) < 3500
    assert lines[-1].endswith("... (more output is not logged)")


LEAVES = """
sleep 300 &
echo $! > $PIDS
setsid sh -c 'echo $$ >> $PIDS; trap "" TERM; while :; do sleep 300; done' &
while [ $(wc -l < $PIDS) -lt 2 ]; do sleep 0.01; done
echo $$ >> $PIDS
"""


def pids(path: Path) -> list[int]:
    """The processes of LEAVES, once all of them run."""
    for _ in range(1000):
        found = path.read_text().split() if path.exists() else []
        if len(found) == 3:
            return [int(each) for each in found]
        time.sleep(0.01)
    raise AssertionError(f"no three processes: {found}")


def test_what_a_program_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    reply = ended(tmp_path, LEAVES + "echo 1", variables=(f"PIDS={path}",))
    assert reply == Reply(value={"reward": 1.0})
    assert not any(map(alive, pids(path)))


def test_a_program_that_is_closed_is_ended_with_all_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pids"

    async def use(pool: Pool) -> None:
        await pool.begin("1")
        found = await asyncio.to_thread(pids, path)
        assert all(map(alive, found))
        await pool.tell("close", "1")
        assert not any(map(alive, found))

    script = LEAVES + 'trap "" TERM; while :; do sleep 300; done'
    with_pool(program(tmp_path, script, variables=(f"PIDS={path}",)), use)


def test_programs_of_a_process_that_is_killed_are_ended(tmp_path: Path) -> None:
    path = tmp_path / "pids"

    async def use(pool: Pool) -> None:
        await pool.begin("1")
        found = await asyncio.to_thread(pids, path)
        child = await pool.process.start()
        os.kill(child._process.pid, signal.SIGKILL)
        assert "was killed by SIGKILL" in (await pool.ended("1")).error
        assert not any(map(alive, found))

    with_pool(program(tmp_path, LEAVES + "sleep 300", variables=(f"PIDS={path}",)), use)


def test_no_more_programs_run_than_may(tmp_path: Path) -> None:
    script = "mkdir $LOCK || exit 3; sleep 0.2; rmdir $LOCK; echo 1"

    async def use(pool: Pool) -> None:
        for key in "abc":
            await pool.begin(key)
        replies = [await pool.ended(key) for key in "abc"]
        assert replies == [Reply(value={"reward": 1.0})] * 3

    lock = f"LOCK={tmp_path / 'lock'}"
    with_pool(program(tmp_path, script, variables=(lock,), concurrency=1), use)


COMMANDS = [
    (("/none/such",), "its program /none/such does not exist on this host"),
    (("no-such-command",), "its program no-such-command is not on the PATH of this host"),
    (("/etc/passwd",), "its program /etc/passwd is not executable"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "why"), COMMANDS)
def test_a_command_that_cannot_be_started_is_told_before_models_load(
    tmp_path: Path, command: tuple[str, ...], why: str
) -> None:
    with pytest.raises(LaunchError, match=f"environment desk: {why}"):
        ended(tmp_path, "", command=command)


def test_a_variable_that_the_run_has_not_is_told(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="variable NOT_THERE is not set"):
        ended(tmp_path, "", variables=("NOT_THERE",))


def test_a_script_of_the_job_is_executable(tmp_path: Path) -> None:
    reply = ended(tmp_path, "#!/bin/sh\necho 1\n", command=("inputs/a.sh",))
    assert reply == Reply(value={"reward": 1.0})


def test_a_new_process_of_agents_kills_what_an_ended_one_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RUN, "forgedsl-test-of-orphans")
    dead = subprocess.Popen(["true"])
    dead.wait()
    mine, theirs = os.environ[RUN], "other-run"
    given = ((dead.pid, mine), (os.getpid(), mine), (dead.pid, theirs))
    left, kept, other = (
        subprocess.Popen(["sleep", "100"], env={**os.environ, POOL: f"{pid}-{run}", RUN: run})
        for pid, run in given
    )
    kill_orphans()
    try:
        assert left.wait(10) == -signal.SIGKILL
        assert (kept.poll(), other.poll()) == (None, None)
    finally:
        for each in (left, kept, other):
            each.kill()
            each.wait()
