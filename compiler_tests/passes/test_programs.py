"""`program([...])` in the language: what it becomes in a job, and what is refused."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from forge_texts import job_of

from forgedsl.api import load_text
from forgedsl.lower import job as spec
from forgedsl.lower.lock import lock_text

DESK = 'environment desk = program(["sh", "agents/desk.sh"]) { deadline = 60s }'
TEXT = f"""forge 1
import "std/rl" as rl
model policy {{ source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }}
dataset tasks {{ source = hf("a/b"), prompt = chat(user = row.question), max_prompt_tokens = 512 }}
service trainer   : titan(policy) {{ batch {{ seq_len = 4096, rows = 4 }} }}
service generator : vllm(policy) {{ sampling.max_tokens = 256 }}
{DESK}
reward right(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)
rubric grade {{ score = right, on_truncated = 0.0 }}
flow train {{
  prompt  = tasks.draw(16)
  rollout = generator.play(prompt, env = desk, n = 8)
  score   = grade(rollout)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}}
schedule async {{ steps = 5, max_policy_age = 1 }}
"""


def lowered(folder: Path, call: str) -> tuple[spec.Job | None, list[tuple[str, str, str]]]:
    """(job or None, (code, message, help) of each error) with `program(CALL)`."""
    (folder / "agents").mkdir()
    for name in ("desk.sh", "helper.py"):
        (folder / "agents" / name).write_text(f"# {name}\n", "utf-8")
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/pyvenv.cfg").touch()
    (folder / "venv/bin/python").touch(0o755)
    job, found = job_of(TEXT, ('["sh", "agents/desk.sh"]', call), folder=folder)
    return job, [(d.code, d.message, d.help) for d in found if d.severity == "error"]


def test_a_program_is_part_of_the_job_with_its_files(tmp_path: Path) -> None:
    call = '["sh", "agents/desk.sh", "-v"], files = ["agents"], variables = ["A=1", "HF_TOKEN"]'
    job, said = lowered(tmp_path, f"{call}, reward = file, stdin = true, concurrency = 4")
    assert said == []
    assert job is not None
    desk = job.environments["desk"]
    assert desk.program == spec.AgentProgram(
        command=("sh", "inputs/agents/desk.sh", "-v"), variables=("A=1", "HF_TOKEN"),
        reward="file", stdin=True, concurrency=4,
    )  # fmt: skip
    assert {*desk.scripts} == {"inputs/agents/desk.sh", "inputs/agents/helper.py"}
    assert (desk.agent, desk.parts, desk.path) == (True, ("reward",), "")
    assert hashlib.sha256(b"# desk.sh\n").hexdigest() in lock_text(job)


def test_a_folder_of_the_target_is_part_of_the_job(tmp_path: Path) -> None:
    job, said = lowered(tmp_path, '["sh", "agents/{target}", "{\\"a\\": 1}", "{target}"]')
    assert said == []
    assert job is not None
    desk = job.environments["desk"]
    assert desk.program is not None
    assert desk.program.command == ("sh", "inputs/agents/{target}", '{"a": 1}', "{target}")
    assert {*desk.scripts} == {"inputs/agents/desk.sh", "inputs/agents/helper.py"}


def test_a_program_without_reward_has_no_parts(tmp_path: Path) -> None:
    _, said = lowered(tmp_path, '["sh"], reward = none')
    assert [(code, message) for code, message, _ in said] == [
        ("F101", "no environment of `rollout` has a reward part `reward`")
    ]


def test_agents_that_are_no_programs_have_no_new_field(tmp_path: Path) -> None:
    given = {"type_name": "A", "path": "a.py", "sha256": "", "agent": True}
    assert "program" not in spec.Environment(**given).model_dump()


WRONG = [
    ("[]", "the command is empty", "program(["),
    ('["sh agents/desk.sh"]', "no shell splits a command", '["sh", "agents/desk.sh"]'),
    ('["agents/desk.sh"]', "`agents/desk.sh` is not executable", "chmod +x agents/desk.sh"),
    ('["agents/dest.sh"]', "`agents/dest.sh` does not exist", "did you mean `agents/desk.sh`?"),
    ('["sh", "agents/dest.sh"]', "`agents/dest.sh` does not exist",
     "did you mean `agents/desk.sh`?"),
    ('["venv/bin/python", "-m", "a"]', "belongs to an environment", "its absolute path"),
    ('["sh", "{key}"]', "`{key}` in an argument can be read", "variables = ["),
    ('["sh"], files = ["/etc"]', "write the path of `/etc` relative", ""),
    ('["sh"], files = ["agent"]', "`agent` does not exist", "did you mean `agents`?"),
    ('["sh", "{taks}"]', "`{taks}` is no placeholder", "did you mean `{task}`?"),
    ('["sh", "agent/{target}"]', "`agent` does not exist beside", "did you mean `agents`?"),
    ('["sh"], parts = []', "name one reward part", ""),
    ('["sh"], parts = ["a b"]', "`a b` is no name of a reward part", ""),
    ('["sh"], parts = ["a", "a"]', "several different ones", ""),
    ('["sh"], parts = ["a", "b"], reward = exit', "an exit code is one reward", "last_line"),
    ('["sh"], variables = ["a-b=1"]', "`a-b=1` is not a variable", ""),
    ('["sh"], variables = ["FORGE_TASK=1"]', "`FORGE_TASK` is set by the run", ""),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message", "remedy"), WRONG)
def test_what_is_wrong_on_any_machine_is_told(
    tmp_path: Path, call: str, message: str, remedy: str
) -> None:
    _, said = lowered(tmp_path, call)
    ((code, text, help_text),) = said
    assert code == "F113"
    assert message in text
    assert remedy in help_text


SCRIPT = """
import argparse

TASKS = {"sums": 1, "differences": 2}
LEVELS = ["low", "high"]
LEVELS.append("higher")


def main():
    parser = argparse.ArgumentParser(description="A task.")
    parser.add_argument("--task", "-t", choices=TASKS, required=True)
    parser.add_argument("--level", choices=LEVELS)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--share", type=float)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--tools", nargs="+")
    parser.add_argument("folder", nargs="?")
    parser.parse_args()


if __name__ == "__main__":
    main()
"""
ARGUMENTS = [
    ('"--tsak", "sums"', "`agents/task.py` has no argument `--tsak`", "did you mean `--task`?"),
    ('"--task", "sum"', "`--task` of `agents/task.py` cannot be `sum`", "did you mean `sums`?"),
    ('"--task=x"', "`--task` of `agents/task.py` cannot be `x`", "it is `sums`, `differences`"),
    ('"-t", "sum"', "`-t` of `agents/task.py` cannot be `sum`", "did you mean `sums`?"),
    ('"--plain"', "`agents/task.py` needs the argument `--task`", ""),
    ('"--task"', "`--task` of `agents/task.py` needs a value", ""),
    (
        '"--task", "sums", "--steps", "many"',
        "`--steps` of `agents/task.py` must be of type int",
        "",
    ),
    ('"--task", "sums", "--share", "half"', "must be of type float: `half`", ""),
    ('"--task", "sums", "--plain=yes"', "`--plain` of `agents/task.py` takes no value", ""),
    ('"--task", "sums", "a", "b"', "`agents/task.py` has no place for the argument `b`", ""),
]
ACCEPTED = [
    '"--task", "sums"', '"--ta", "sums", "--steps", "-3", "a"', '"-tsums"', '"--task={task}"',
    '"--task", "sums", "--level", "higher"', '"--task", "sums", "--tools", "a", "b", "--plain"',
    '"--help"', '"--task", "sums", "--", "-x"',
]  # fmt: skip


def scripted(folder: Path, words: str, script: str = SCRIPT) -> list[tuple[str, str, str]]:
    """Return the errors of a program whose script declares arguments."""
    (folder / "agents").mkdir(exist_ok=True)
    (folder / "agents/task.py").write_text(script, "utf-8")
    _, found = job_of(
        TEXT, ('["sh", "agents/desk.sh"]', f'["python3", "-u", "agents/task.py", {words}]'),
        folder=folder,
    )  # fmt: skip
    return [(d.code, d.message, d.help) for d in found if d.severity == "error"]


@pytest.mark.parametrize(("words", "message", "remedy"), ARGUMENTS)
def test_arguments_that_a_script_refuses_are_told(
    tmp_path: Path, words: str, message: str, remedy: str
) -> None:
    ((code, text, help_text),) = scripted(tmp_path, words)
    assert code == "F113"
    assert message in text
    assert remedy in help_text
    asked = words.replace('"', "").replace(", ", " ").split()
    done = subprocess.run(
        [sys.executable, tmp_path / "agents/task.py", *asked], capture_output=True, check=False
    )
    assert done.returncode == 2  # argparse refuses them, too


@pytest.mark.parametrize("words", ACCEPTED)
def test_arguments_that_a_script_accepts_are_not_told(tmp_path: Path, words: str) -> None:
    assert scripted(tmp_path, words) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parser.parse_args()", "parser.parse_known_args()"),
        ('ArgumentParser(description="A task.")', "ArgumentParser(prefix_chars='+')"),
        ("    parser.parse_args()", "    for n in 'ab': parser.add_argument(f'--{n}')"),
        ('"--task", "-t"', '*["--task"]'),
        ("import argparse", "import argparse, sys; sys.argv.append('--task=sums')\nexec(''"),
    ],
)
def test_scripts_whose_arguments_cannot_be_known_are_not_checked(
    tmp_path: Path, old: str, new: str
) -> None:
    assert old in SCRIPT
    assert scripted(tmp_path, '"--absent", "1"', SCRIPT.replace(old, new, 1)) == []


def test_a_wrong_argument_is_marked_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/task.py").write_text(SCRIPT, "utf-8")
    text = TEXT.replace('["sh", "agents/desk.sh"]', '["python3", "agents/task.py", "--tsak", "a"]')
    (found,) = (
        each
        for each in load_text(text, "t.forge", folder=tmp_path).reporter
        if each.severity == "error"
    )
    assert text[found.span.start : found.span.end] == '"--tsak"'


def test_a_file_called_program_goes_before_the_word(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("x = 1\n", "utf-8")
    text = TEXT.replace("forge 1\n", 'forge 1\nimport python "program.py" as program\n')
    found = load_text(text, "t.forge", folder=tmp_path)
    assert "X801" in {d.code for d in found.reporter}
