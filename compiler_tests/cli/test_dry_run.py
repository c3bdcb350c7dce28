"""`forgec run --dry-run`: everything up to the launch, a line each, and nothing is started."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from forgedsl.cli import host, outside
from forgedsl.cli.app import app
from forgedsl.runtime import room

GRPO = str(Path(__file__).parents[2] / "pipelines/grpo_math.forge")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry(*words):
    return CliRunner().invoke(app, ["run", GRPO, "--dry-run", "--profile", "cpu", *words])


def test_a_job_that_would_start(folder):
    done = dry()
    assert (done.exit_code, list(folder.iterdir())) == (0, []), done.output
    states = [line.split("  ")[1].split()[0] for line in done.stdout.splitlines()[:-1]]
    assert states == ["host", "stack", "models", "data", "rewards", "run"]
    assert "grpo_math (profile cpu) would start; nothing was launched" in done.stdout


@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_what_lint_refuses_does_not_run(folder, words):
    file = [GRPO, "--profile", "cpu", "generator.sampling.temperature=0.7"]
    done = CliRunner().invoke(app, ["run", *file, *words])
    assert (done.exit_code, list(folder.iterdir())) == (1, [])
    assert "error[L411]: log-probabilities come from different measures" in done.stderr


def test_every_obstacle_is_named(folder):
    (folder / "rows.jsonl").write_text("no JSON\n" * 200)
    (folder / "taken").mkdir()
    (folder / "taken/job.json").touch()
    words = ("--set", f'gsm8k.source=jsonl("{folder / "rows.jsonl"}")', "--run-dir", "taken")
    done = dry(*words)
    assert done.exit_code == 4
    failed = [line.split()[0] for line in done.stdout.splitlines() if " FAILED " in line]
    assert failed == ["data", "run"]
    assert "would not start: 2 of 6 checks failed" in done.stdout


@pytest.mark.parametrize(
    ("words", "need"),
    [
        ((), "3 checkpoints of 6.8 MiB where"),
        (("schedule.steps=3", "checkpoint.keep=1"), "1 checkpoint of 6.8 MiB where"),
        (
            ('checkpoint.export=hf("out")',),
            "3 checkpoints of 6.8 MiB and an export of 2.3 MiB where",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_on_the_disk_are_an_obstacle(folder, monkeypatch, words, need):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    done = dry(*words)
    assert f"run folder   FAILED  no room for {need}" in done.stdout
    assert "5.0 MiB are free; make room, or choose" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "seconds", "said"),
    [
        ("import os\nos._exit(3)\n", 60.0, "grading.py:2 ends the process while it is imported "),
        ("import time\ntime.sleep(99)\n", 10.0, "grading.py:2 did not end while it was imported: "),
    ],
)
def test_a_reward_whose_import_does_not_end_well_is_an_obstacle(
    folder, monkeypatch, body, seconds, said
):
    monkeypatch.setattr(outside, "SECONDS", seconds)
    (folder / "grading.py").write_text(f"{body}def f(response): ...\n")
    text = Path(GRPO).read_text().replace('local("', 'local("forgedsl:')
    text = text.replace('jsonl("', 'jsonl("forgedsl:').replace(
        "forge 1", 'forge 1\nimport python "grading.py" as own', 1
    )
    (folder / "t.forge").write_text(re.sub("reward correct .*", "reward correct = own.f", text))
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert "rewards      FAILED  reward correct (f of grading.py, t.forge:" in done.stdout
    assert f"): {said}" in done.stdout


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("job.json", "; it is a run: `forgec export RUN --to FOLDER` makes a model of it"),
        ("controller.json", "; it is a checkpoint of a run: `forgec export RUN --to FOLDER` "),
        ("notes.txt", "\n"),
    ],
)
def test_a_folder_that_holds_no_model_is_an_obstacle(folder, file, said):
    (folder / "mine").mkdir()
    (folder / "mine" / file).write_text("{}")
    done = dry("--set", f'policy.source=local("{folder}/mine")')
    assert done.exit_code == 4, done.output
    assert f"-mine holds no model: it has no config.json{said}" in done.stdout


def test_a_judge_that_is_not_reached_is_an_obstacle(folder):
    text = Path(GRPO).read_text().replace('local("', 'local("forgedsl:')
    text = text.replace('jsonl("', 'jsonl("forgedsl:')
    judge = 'service judge : openai("m") { url = "http://127.0.0.1:9/v1" }\nreward correct = '
    judge += 'judge.score(prompt = "Grade {response} from 1 to 5", scale = [1, 5])'
    judge += " { effects = [net], timeout = 2s, retries = 0 }"
    (folder / "t.forge").write_text(re.sub("reward correct .*", judge, text))
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run", "--profile", "cpu"])
    assert "ConnectionError: http://127.0.0.1:9/v1 is not reached: " in done.stdout, done.output


def test_an_environment_that_cannot_be_made_is_an_obstacle(folder):
    text = (Path(GRPO).parent / "guess_math.forge").read_text("utf-8")
    text = text.replace('local("', 'local("forgedsl:').replace('jsonl("', 'jsonl("forgedsl:')
    (folder / "environments").mkdir()
    source = (Path(GRPO).parent / "environments/sums.py").read_text("utf-8")
    (folder / "environments/sums.py").write_text(source.replace("= guesses, hint", "= 1 / 0, hint"))
    (folder / "t.forge").write_text(text)
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert "environments FAILED  environment game: Guess(guesses = 3) failed: " in done.stdout


def test_gpus_that_are_not_there(folder, monkeypatch):
    monkeypatch.setattr(host, "detect_gpus", list)
    done = CliRunner().invoke(
        app, ["run", GRPO, "--dry-run", "--profile", "gpu_tiny", "--set", "cluster.gpus=1"]
    )
    assert "host         FAILED  the plan uses 1 GPU, and this host has none" in done.stdout


def test_a_dry_run_is_of_a_start(folder):
    assert dry("--stub").exit_code == 2


def test_rows_that_would_be_left_out_are_said(folder):
    rows = [{"question": "1+1=", "answer": "#### 2"}] * 9 + [{"answer": "#### 3"}]
    rows.append({"question": "1+" * 300, "answer": "#### 4"})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = dry("--set", f'gsm8k.source=jsonl("{folder / "rows.jsonl"}")')
    assert "gsm8k: 11 rows, 2 of 11 rows left out (bad row: 1, too long: 1)" in done.stdout
    assert "rows.jsonl:10: " in done.stdout
    assert "rows.jsonl:11: " in done.stdout
