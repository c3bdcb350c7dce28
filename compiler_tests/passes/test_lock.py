"""The lock: what is in it, what counts as drift, and `forgec run --locked`."""

import pytest
from forge_commands import CliRunner
from forge_texts import GRPO, changed, lower_of

from forgedsl.cli import run
from forgedsl.cli.app import app
from forgedsl.lower import lock as locks

BARE = changed(
    GRPO,
    ('hf("openai/gsm8k", split = "train")', 'jsonl("rows.jsonl")'),
    ("service trainer : titan(policy) {\n  procs = 4,", "service trainer : titan(policy) {\n"
     "  device = cpu, gpus = 0,"),
    ("vllm(policy) { replicas = 2, parallel.tp = 2, ", "vllm(policy) { device = cpu, gpus = 0, "),
    ("rl.math_equal(tolerance = 1e-6)", "judge.check"),
    ("as rl\n", 'as rl\nimport python "judge.py" as judge\n'),
    ('source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")',
     'source = hf("Qwen/Qwen3-0.6B"), '
     'arch = qwen3(layers = 2, hidden = 64, heads = 2, vocab = 96)'),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    (tmp_path / "judge.py").write_text("def check(prompt, response, target):\n    return 1.0\n")
    (tmp_path / "grpo.forge").write_text(BARE)
    return tmp_path


@pytest.fixture
def launched(monkeypatch):
    seen = []
    monkeypatch.setattr(run, "launch", lambda job, run_dir, **_: seen.append(job) or 0)
    return seen


def forgec(*arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def drifted(folder, *overrides):
    """Fields that drift when the folder changes between `lock` and now."""
    lowered, diagnostics = lower_of(BARE, *overrides, folder=folder)
    assert lowered is not None, diagnostics
    lock = locks.read_lock((folder / "grpo.lock").read_text())
    return [line.split(":")[0] for line in locks.drift(lowered.job, lock)]


def test_locked_run_of_an_unchanged_file(folder, launched):
    assert forgec("lock", "grpo.forge").exit_code == 0
    result = forgec("run", "grpo.forge", "--locked", "--run-dir", "r")
    assert result.exit_code == 0, result.stderr
    assert len(launched) == 1


def test_comments_and_learning_rates_are_no_drift(folder, launched):
    forgec("lock", "grpo.forge")
    (folder / "grpo.forge").write_text(changed(BARE, ("forge 1\n", "forge 1\n# hello\n")))
    result = forgec("run", "grpo.forge", "--locked", "--run-dir", "r", "trainer.optimizer.lr=3e-6")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("file", "text", "field"),
    [
        ("rows.jsonl", '{"question": "1+2", "answer": "3"}\n', "datasets.gsm8k.sha256"),
        ("judge.py", "def check(prompt, response, target):\n    return 0.0\n",
         "rewards.correct.sha256"),
        ("grpo.forge", changed(BARE, ("-10.0, 10.0", "-10.0, 9.0")), "losses.grpo"),
        ("grpo.forge", changed(BARE, ("Qwen3-0.6B", "Qwen3-4B")), "models.policy.id"),
    ],
)  # fmt: skip
def test_drift_is_refused_and_named(folder, launched, file, text, field):
    forgec("lock", "grpo.forge")
    (folder / file).write_text(text)
    result = forgec("run", "grpo.forge", "--locked", "--run-dir", "r")
    assert result.exit_code == 2
    assert f"  {field}: " in result.stderr
    assert launched == []
    assert not (folder / "r").exists()
    assert forgec("lock", "grpo.forge", "--check").exit_code == 1


def test_another_package_version_is_drift(folder, monkeypatch):
    forgec("lock", "grpo.forge")
    versions = dict(locks.installed_versions()) | {"torch": "0.0.1"}
    monkeypatch.setattr(locks, "installed_versions", lambda: iter(versions.items()))
    assert drifted(folder) == ["packages.torch"]


def test_other_defaults_are_drift(folder, monkeypatch):
    forgec("lock", "grpo.forge")
    table = locks.defaults()
    table["titan"]["optimizer.eps"] = "1e-06"
    monkeypatch.setattr(locks, "defaults", lambda: table)
    assert drifted(folder) == ["defaults.titan.optimizer.eps"]


def test_open_revisions_are_those_of_the_local_cache_and_stay(folder, launched):
    refs = folder / "hub/models--Qwen--Qwen3-0.6B/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("1111")
    forgec("lock", "grpo.forge")
    (refs / "main").write_text("2222")
    assert forgec("run", "grpo.forge", "--locked", "--run-dir", "r").exit_code == 0
    assert launched[0].models["policy"].source.revision == "1111"
    assert launched[0].digest() == launched[0].content_hash


def test_the_lock_of_a_run_can_be_named(folder, launched):
    assert forgec("run", "grpo.forge", "--run-dir", "r").exit_code == 0
    result = forgec("run", "grpo.forge", "--lock", "r/forge.lock", "--run-dir", "s")
    assert result.exit_code == 0, result.stderr


def test_a_missing_or_broken_lock(folder, launched):
    missing = forgec("run", "grpo.forge", "--locked")
    assert missing.exit_code == 2
    assert missing.stderr.splitlines()[-1] == (
        "forgec run: cannot read the lock grpo.lock: No such file or directory; "
        "`forgec lock FILE -o grpo.lock` writes one"
    )
    (folder / "grpo.lock").write_text("format_version = ")
    assert "is not a lock" in forgec("run", "grpo.forge", "--locked").stderr
