"""Rewards that are called with answers made for the purpose: what they may do, and what is told."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forgedsl_runtime.probes import answers

PROGRAM = """\
forge 1
import "std/rl" as rl
import python "p.py" as p

model policy { source = hf("a/b", revision = "1"), arch = qwen3("0.6B"), context = 2048 }
dataset sums { source = jsonl("sums.jsonl"), prompt = row.question, target = row.answer }
service trainer : titan(policy) { optimizer { lr = 1e-6 }, batch { seq_len = 2048, rows = 4 } }
service generator : vllm(policy) { sampling { max_tokens = 1024 } }
reward correct = p.score
flow train {
  prompt  = sums.draw(2)
  rollout = generator.sample(prompt, n = 4)
  score   = correct(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.reinforce)
  sync trainer -> generator
}
schedule sync { steps = 4 }
"""
RIGHT = "    return float(response.strip() == target)\n"
SCORE = "def score(prompt: str, response: str, target: str) -> float:\n"
NOT_MADE = "some calls of reward correct were not made"
EFFECTS = f"{NOT_MADE}: it writes files, starts processes or connects to others"
QUIET = 'getattr(__import__("{}"), "{}")'
"""a name that is found only when it runs, so that no rule reads the effect"""


@pytest.fixture
def program(tmp_path):
    """Write a program with this reward; return its path."""

    def write(code):
        rows = [{"question": f"{i} + 10 =", "answer": str(i + 10)} for i in range(1, 9)]
        (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
        (tmp_path / "p.py").write_text(code, "utf-8")
        (tmp_path / "t.forge").write_text(PROGRAM, "utf-8")
        return tmp_path / "t.forge"

    return write


def command(path, *options):
    return [sys.executable, "-m", "forgedsl", "lint", "--deep", path.name, *options]


def linted(path, *options):
    return subprocess.run(
        command(path, *options), cwd=path.parent, capture_output=True, text=True, timeout=240
    )


def only_when_called(act):
    """A reward that is harmless until it is called with the answer of spaces, which only the calls
    with made answers have."""
    return f"{SCORE}    if response and not response.strip():\n        {act}\n{RIGHT}"


def test_a_right_reward_is_called_and_nothing_is_told(program):
    done = linted(program(SCORE + RIGHT))
    assert "X85" not in done.stdout
    assert NOT_MADE not in done.stdout


@pytest.mark.parametrize(
    "act",
    [
        f'{QUIET.format("builtins", "open")}("made", "w").write("x")',
        f"{QUIET.format('os', 'fork')}()",
        f'{QUIET.format("os", "system")}("touch made")',
        f'{QUIET.format("socket", "create_connection")}(("127.0.0.1", 9))',
    ],
    ids=["writes", "forks", "starts a program", "connects"],
)
@pytest.mark.full
def test_effects_that_are_not_declared_do_not_happen(program, act):
    path = program(only_when_called(f"try:\n            {act}\n        except Exception: pass"))
    done = linted(path)
    assert EFFECTS in done.stdout
    assert not (path.parent / "made").exists()
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.full
def test_a_system_call_that_python_does_not_see_is_refused_by_the_kernel(program):
    act = 'import ctypes; ctypes.CDLL(None).mkdir(b"made", 0o700)'
    path = program(only_when_called(act))
    linted(path)
    assert not (path.parent / "made").exists()


@pytest.mark.full
def test_a_reward_that_hangs_is_ended_and_what_was_not_called_is_told(program):
    done = linted(program(only_when_called("while True: pass")))
    assert f"{NOT_MADE}: an answer of spaces took longer than 2 s" in done.stdout


@pytest.mark.full
def test_what_a_reward_prints_is_not_among_the_findings(program):
    path = program(only_when_called('print("{broken")'))
    json.loads(linted(path, "--format", "json").stdout)


@pytest.mark.full
def test_a_reward_that_ends_its_process_gives_no_traceback(program):
    done = linted(program(only_when_called(f"{QUIET.format('os', '_exit')}(3)")))
    assert f"{NOT_MADE}: its process ended with exit code 3 in the call" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.full
def test_an_interrupt_ends_the_calls_and_their_process(program):
    wait = f"{SCORE}    import time\n    time.sleep(0.3)\n{RIGHT}"
    path = program(wait)
    with subprocess.Popen(
        command(path), cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        child = started(process.pid, "rewards.worker")
        process.send_signal(signal.SIGINT)
        said = "".join(process.communicate(timeout=60))
    assert "Traceback" not in said
    assert process.returncode == 130
    assert gone(child)


def started(pid, module):
    """Wait for a process with this module in its command that was started by `pid`."""
    for _ in range(600):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                mine = f"\nPPid:\t{pid}\n" in (path.parent / "status").read_text()
                if mine and module in path.read_text():
                    return int(path.parent.name)
            except OSError:
                continue
        time.sleep(0.1)
    raise AssertionError("no process was started")


def gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if ") Z " in Path(f"/proc/{pid}/stat").read_text():
            return True
        time.sleep(0.1)
    return False


# ---- answers


def test_forms_come_from_patterns_tags_and_the_prompt():
    code = 'import re\nPATTERN = re.compile(r"(?i)result\\s*=\\s*(-?\\d+)")\nMARK = "#### "\n'
    found = answers.forms("Write <guess> and </guess>, then `Total: 5`.", [code])
    assert {"result={}", "#### {}", "<guess>{}</guess>", "Total: {}", "{}"} <= {*found}


def test_keys_that_a_reward_looks_up_are_forms_of_an_answer():
    code = "TAG = '<out>'\n\ndef f(found):\n    return found.get('result') or found['value']\n"
    wanted = {'{"result": "{}"}', '{"value": {}}', "<out>result={}</out>"}
    assert wanted <= {*answers.forms("Answer.", [code])}


@pytest.mark.parametrize("target", ["5", "12", "-3", "1.5", "0", "100", "Paris", "B", "1,234"])
def test_made_wrong_answers_are_wrong(target):
    wrong = answers.wrong_for(target, ["Rome", "A", "Paris"])
    assert wrong != target
    assert target not in wrong
    form = "<answer>{}</answer>"
    made = answers.cheats(form, target, wrong, "Which?", ["A", "B", "C"])
    right = answers.fill(form, target)
    assert right not in [each.text for each in made]
    assert all("{}" not in each.text for each in made)


@pytest.mark.parametrize("target", [{"a": 1}, [1], True, None, "", "two\nlines", "x" * 100])
def test_only_short_targets_are_answered(target):
    assert answers.answerable_text(target) is None


# ---- environments

GAME = """\
import re

from forgedsl.environment import Environment, Start, Step


class Game(Environment):
    parts = ("solved",)

    def reset(self, task, rng):
        self.answer = task.target
        return Start("Write the sum.")

    def step(self, turn):
        {act}
        return Step(rewards={{"solved": float(turn.text.strip() == self.answer)}}, done=True)
"""
PLAYED = (
    PROGRAM.replace("reward correct = p.score", "environment shop = p.Game\n"
                    "reward correct(r: Rollout) -> f32 = clamp(r.rewards.solved, 0.0, 1.0)")
    .replace("prompt = row.question", 'prompt = chat("Write the sum.", row.question)')
    .replace("generator.sample(prompt, n = 4)",
             "generator.play(prompt, env = shop, n = 4, max_turns = 2)")
)  # fmt: skip
NOT_PLAYED = "some games of environment shop were not played"


def played(program, act):
    path = program(GAME.format(act=act))
    path.write_text(PLAYED, "utf-8")
    return path, linted(path)


@pytest.mark.full
def test_a_right_environment_is_played_and_nothing_is_told(program):
    _, done = played(program, "pass")
    assert "X85" not in done.stdout
    assert NOT_PLAYED not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.full
def test_effects_of_an_environment_do_not_happen(program):
    path, done = played(program, f'{QUIET.format("builtins", "open")}("made", "w").write("x")')
    assert f"{NOT_PLAYED}: it writes files" in done.stdout
    assert not (path.parent / "made").exists()


@pytest.mark.full
def test_an_environment_that_hangs_is_left_and_told(program):
    _, done = played(program, "while not turn.text: pass")
    assert f"{NOT_PLAYED}: `step` took longer than" in done.stdout
