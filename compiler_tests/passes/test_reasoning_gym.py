"""`reasoning_gym(...)` in the language: tasks, fields and conditions are those of the installed
package, which is read and not imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from forge_texts import job_of

from forgedsl.api import load_text
from forgedsl.cli.resuming import differences, package_changes
from forgedsl.hir import reasoning_gym_registry
from forgedsl.hir.reasoning_gym_registry import MODULE
from forgedsl.lint.engine import lint_source
from forgedsl.lower import job as spec
from forgedsl.lower.lock import drift, lock_text, read_lock
from forgedsl.source import SourceFile

pytestmark = pytest.mark.skipif(  # importing it takes seconds
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)

CALL = '"leg_counting", size = 5000, seed = 1000'
TEXT = f"""forge 1
import "std/rl" as rl
model policy {{ source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }}
dataset legs {{
  source = reasoning_gym({CALL})
  prompt = chat("Answer in <answer> tags.", row.question)
  target = row.answer
}}
service trainer   : titan(policy) {{ batch {{ seq_len = 4096, rows = 4 }} }}
service generator : vllm(policy) {{ sampling.max_tokens = 256 }}
reward right = rl.reasoning_gym
rubric grade {{ score = right, on_truncated = 0.0 }}
flow train {{
  prompt  = legs.draw(16)
  rollout = generator.sample(prompt, n = 8)
  score   = grade(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}}
schedule async {{ steps = 5, max_policy_age = 1 }}
eval held_out {{
  dataset = legs, source = reasoning_gym("leg_counting", size = 100), score = right, every = 5
}}
"""


def lowered(folder: Path, call: str) -> tuple[spec.Job | None, list[tuple[str, str, str]]]:
    """(job or None, (code, message, help) of each error) with `reasoning_gym(CALL)`."""
    job, found = job_of(TEXT, (CALL, call), folder=folder)
    return job, [(d.code, d.message, d.help) for d in found if d.severity == "error"]


def linted(text: str, folder: Path) -> list[tuple[str, str, str]]:
    result = lint_source(SourceFile("t.forge", text), folder)
    return [(d.code, d.message, d.help) for d in result.diagnostics]


def test_rows_and_rewards_are_part_of_the_job_with_the_version_of_the_package(
    tmp_path: Path,
) -> None:
    job, said = lowered(tmp_path, CALL + ", min_animals = 2, max_animals = 4")
    assert said == []
    assert job is not None
    version = {"reasoning-gym": metadata.version("reasoning-gym")}
    assert job.datasets["legs"].source == spec.ReasoningGymSource(
        task="leg_counting", size=5000, seed=1000, packages=version,
        options={"min_animals": 2, "max_animals": 4},
    )  # fmt: skip
    assert job.datasets["legs.held_out"].source == spec.ReasoningGymSource(
        task="leg_counting", size=100, seed=0, packages=version
    )
    right = job.rewards["right"]
    assert (right.inputs, right.args, right.packages) == (
        {"entry": "column entry"}, {"whole": False}, version,
    )  # fmt: skip
    lock = lock_text(job)
    assert lock.count(f'reasoning-gym = "{version["reasoning-gym"]}"') == 3
    assert drift(job, read_lock(lock)) == []
    assert spec.Job.model_validate_json(job.model_dump_json()) == job


def test_another_version_does_not_stop_a_resume_and_is_told(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path, CALL)
    assert job is not None
    assert package_changes(job) == []
    source = job.datasets["legs"].source.model_copy(update={"packages": {"reasoning-gym": "0.1"}})
    legs = job.datasets["legs"].model_copy(update={"source": source})
    old = job.model_copy(update={"datasets": job.datasets | {"legs": legs}})
    assert differences(old, job) == []
    (told,) = package_changes(old)
    assert told.setting == "datasets.legs.packages.reasoning-gym"
    other = source.model_copy(update={"seed": 8})
    legs = job.datasets["legs"].model_copy(update={"source": other})
    old = job.model_copy(update={"datasets": job.datasets | {"legs": legs}})
    assert [each.setting for each in differences(old, job)] == ["datasets.legs.source.seed"]


WRONG = [
    ("", "F114", "needs the name of a task as its first", 'reasoning_gym("leg_counting"'),
    ("3", "F109", "`task` of `reasoning_gym` must be a string", '`"3"`'),
    ('"leg_count"', "F101", "has no task `leg_count`", "mean `leg_counting`"),
    ('"nothing_like_it"', "F101", "has no task `nothing_like_it`", "tasks are known"),
    ('"composite"', "F113", "mixes other tasks", "mixture([reasoning_gym("),
    ('"leg_counting", size = 0', "F113", "`size` of `reasoning_gym` must be at least 1", ""),
    ('"leg_counting", seed = -1', "F113", "`seed` of `reasoning_gym` must be at least 0", ""),
    ('"leg_counting", min_animal = 3', "F114", "no parameter `min_animal`", "`min_animals`"),
    ('"leg_counting", min_animals = 2.5', "F109", "must be an integer", ""),
    ('"leg_counting", min_animals = 20', "F113", "max_animals must be >= min_animals", ""),
    ('"leg_counting", min_animals = 0', "F113", "min_animals must be positive", ""),
    ('"chain_sum", allow_negation = 1', "F109", "must be true or false", ""),
    ('"time_intervals", min_date = "2000"', "F113", "`min_date` of `time_intervals` is of the",
     ""),
    ('"bitwise_arithmetic", difficulty = 99', "F113", "refuses these values", ""),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "message", "help_text"), WRONG)
def test_what_the_package_does_not_make_is_refused(
    call: str, code: str, message: str, help_text: str, tmp_path: Path
) -> None:
    job, said = lowered(tmp_path, call)
    assert job is None
    ((found, told, helped),) = said
    assert found == code
    assert message in told
    assert help_text in helped


def test_the_fix_of_a_task_changes_its_name_alone(tmp_path: Path) -> None:
    text = TEXT.replace(CALL, '"leg_countin", seed = 9')
    (told,) = (d for d in load_text(text, "t.forge", folder=tmp_path).reporter)
    assert told.fix is not None
    (edit,) = told.fix.edits
    after = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert after == text.replace("leg_countin", "leg_counting").replace("countingg", "counting")


def test_several_tasks_are_a_mixture(tmp_path: Path) -> None:
    both = 'mixture([reasoning_gym("gcd", seed = 9), reasoning_gym("lcm")], weights = [2, 1])'
    job, _ = job_of(TEXT, (f"reasoning_gym({CALL})", both), folder=tmp_path)
    assert job is not None
    assert isinstance(job.datasets["legs"].source, spec.MixtureSource)
    text = lock_text(job)
    assert drift(job, read_lock(text)) == []


def test_a_sound_program_has_no_findings(tmp_path: Path) -> None:
    assert linted(TEXT, tmp_path) == []


def test_without_the_package_lint_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = reasoning_gym_registry.importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == MODULE else find_spec(name),
    )
    text = TEXT.replace(CALL, '"any_task", any_field = 3, seed = 1000')
    ((code, message, help_text),) = linted(text, tmp_path)
    assert (code, help_text) == ("X834", 'pip install "forgedsl[reasoning-gym]"')
    assert "needs the package reasoning-gym, which is not installed here" in message


def test_the_files_agree_with_what_the_package_registers() -> None:
    """In a process of its own: nothing has imported the package before."""
    script = """
import dataclasses, sys
from forgedsl.hir.reasoning_gym_registry import config_of, refused, tasks
read = {name: config_of(name) for name in tasks()}
assert "reasoning_gym" not in sys.modules
from reasoning_gym.factory import DATASETS
assert {*read} == {*DATASETS}, {*read} ^ {*DATASETS}
for name, (_, config) in DATASETS.items():
    found = read[name]
    assert found is not None, name
    fields = {field.name: field for field in dataclasses.fields(config)}
    known = {p.name for p in found.params} | {*found.closed} | {"seed", "size"}
    assert known == {*fields}, (name, known ^ {*fields})
    for param in found.params:
        default = fields[param.name].default
        default = list(default) if isinstance(default, tuple) else default
        assert param.default in (None, default), (name, param)
    assert refused(found, {}) == "" or name == "composite", (name, refused(found, {}))
print(len(read), sum(len(found.conditions) for found in read.values()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, conditions = map(int, done.stdout.split())
    assert count > 90
    assert conditions > 300


def test_evaluating_on_a_part_of_the_training_rows_is_told(tmp_path: Path) -> None:
    text = TEXT.replace("size = 100)", "size = 100, seed = 5999)")
    ((code, _, help_text),) = linted(text, tmp_path)
    assert (code, "`seed = 6000` or more" in help_text) == ("D604", True)
    assert linted(text.replace("5999", "6000"), tmp_path) == []
    harder = text.replace("seed = 5999)", "seed = 5999, max_animals = 20)")
    assert linted(harder, tmp_path) == []  # other problems of the same seeds
