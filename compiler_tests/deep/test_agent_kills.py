"""A run of agents that are programs, whose processes are killed at random; then it is killed whole.

Killed are programs, the process that starts them, the pool with the endpoint, and a generator.
FORGE_DEEP=1 runs it (some ten minutes on two cores); FORGE_SEED picks other moments.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hurt import PIPELINES, Hurt, alive, hard

from forgedsl.runs.checkpoints import checkpoint_steps

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(3600),
]
SEED = int(os.environ.get("FORGE_SEED", "17"))
STEPS, ENDS = 60, 2
MARK = "STORM"
PROGRAM = """
import json, os, re, subprocess, urllib.request

task = json.load(open(os.environ["FORGE_TASK"]))
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
said, solved = task["messages"], 0.0
for turn in range(3):
    body = json.dumps({"model": os.environ["FORGE_MODEL"], "messages": said}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        (choice,) = json.load(answer)["choices"]
    text = choice["message"]["content"]
    found = re.search(r"<answer>(\\d{1,4})</answer>", text)
    if found is not None and found[1] == task["target"]:
        solved = 1.0
        break
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": "?"}]
print(solved)
"""


def pipeline(folder: Path) -> Path:
    """guess_agent.forge with a program in the place of the class."""
    text = (PIPELINES / "guess_agent.forge").read_text("utf-8")
    command = f'["{sys.executable}", "agent.py"], parts = ["solved"], concurrency = 4'
    command += f', variables = ["{MARK}={folder}"]'
    edits = (
        ('local("', 'local("forgedsl:'), ('jsonl("', 'jsonl("forgedsl:'),
        ('import python "agents/guesser.py" as guesser\n', ""),
        ("guesser.Guesser(guesses = guesses)", f"program({command})"),
        ("deadline = 60s, on_error = 0.0", "deadline = 120s, on_error = drop"),
        ("reward early(r: Rollout) -> f32 = clamp(r.rewards.early, 0.0, 1.0)\n", ""),
        ("0.5 * solved + 0.5 * early", "solved"), ("param guesses : int = 3\n", ""),
    )  # fmt: skip
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "agent.py").write_text(PROGRAM, "utf-8")
    (folder / "t.forge").write_text(text, "utf-8")
    return folder / "t.forge"


def programs(run: Hurt) -> list[psutil.Process]:
    """The programs of the run, and what they started in sessions of their own."""
    return [p for p in psutil.process_iter() if alive(p) and marked(p, run.folder)]


def worker(run: Hurt) -> list[int]:
    """The process that starts programs."""
    found = []
    for process in run.tree():
        with suppress(psutil.Error):
            if "environments.worker" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_agents_the_endpoint_and_a_generator_are_killed_and_nothing_is_trained_twice(
    tmp_path: Path,
) -> None:
    rng = random.Random(SEED)
    bag = ["program"] * 8 + ["worker"] * 3 + ["environment_game"] * 2 + ["generator"] * 2
    rng.shuffle(bag)
    words = ("prompts=3", "group=4", "held_out.limit=4", f"schedule.steps={STEPS}",
             "checkpoint.every=10")  # fmt: skip
    run = Hurt(tmp_path, pipeline(tmp_path), words, profile=None)
    moments = sorted(rng.sample(range(3, STEPS - 5), len(bag)))
    whole = set(rng.sample(moments, ENDS))
    for step, target in zip(moments, bag, strict=True):
        run.step(step)
        time.sleep(rng.uniform(0, 0.5))
        if step in whole:
            target = "everything"
            run.until(lambda: checkpoint_steps(run.dir))  # without one it cannot be resumed
            run.kill_tree()
            assert run.left(10) == []
            trained = len(run.events("step.end"))
            run.resume()  # a process that is killed while services start ends the run
            run.until(lambda so_far=trained: len(run.events("step.end")) > so_far)
        elif target == "program":
            run.until(lambda: programs(run), 120)
            hard(rng.choice(programs(run)).pid)
        elif target == "worker":
            run.until(lambda: worker(run), 120)
            hard(worker(run)[-1])
        else:
            run.until(lambda name=target: run.pids(name), 120)
            hard(run.pids(target)[-1])
        print(f"step {step}: {target}", flush=True)
    assert run.end() == 0, run.said()
    history = run.history()
    assert [*history] == list(range(1, STEPS + 1))
    trained = Counter(group for event in history.values() for group in event["groups"])
    assert set(trained.values()) == {1}
    assert max(age for event in history.values() for age in event["ages"]) <= 1
    assert run.left(10) == []
    assert not [p for p in psutil.process_iter() if alive(p) and marked(p, tmp_path)]


def marked(process: psutil.Process, folder: Path) -> bool:
    """True for a program of this test, and for what it left running."""
    with suppress(psutil.Error, OSError):
        return process.environ().get(MARK) == str(folder)
    return False
