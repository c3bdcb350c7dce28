"""`forgec run --dry-run`: everything up to the launch, a line each, and nothing is started."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from forge_commands import CliRunner

from forgedsl.cli import data_checks
from forgedsl.cli.app import app
from forgedsl.errors import LaunchError
from forgedsl.passes import Request, compile_program
from forgedsl.plan import gpus
from forgedsl_runtime import disk_space

PIPELINES = Path(__file__).parents[2] / "pipelines"
GRPO = str(PIPELINES / "grpo_math.forge")
ROWS = 64
"""rows of a dataset in these tests: a dry run reads each row"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Overrides for the flagship: the first rows of its data."""
    flagship(made := tmp_path_factory.mktemp("data"))
    files = ("gsm8k", "arithmetic.jsonl"), ("held_out", "arithmetic_test.jsonl")
    return [f'{name}.source=jsonl("{made / "data" / file}")' for name, file in files]


@pytest.fixture
def dry(sources):
    """A dry run of the flagship."""
    fixed = ["run", GRPO, "--dry-run", "--profile", "cpu", *sources]
    return lambda *words: CliRunner().invoke(app, [*fixed, *words])


def with_few_rows(text, folder):
    """A shipped pipeline for a file in `folder`, where the first rows of its data are."""
    text = text.replace('jsonl("forgedsl:', 'jsonl("')
    for path in set(re.findall(r'jsonl\("([^"]+)"', text)):
        rows = (PIPELINES / path).read_text("utf-8").splitlines(keepends=True)[:ROWS]
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("".join(rows), "utf-8")
    return re.sub(r'local\("(?!forgedsl:)', 'local("forgedsl:', text)


def flagship(folder):
    """The text of the flagship, over few rows."""
    return with_few_rows(Path(GRPO).read_text("utf-8"), folder)


def test_a_job_that_would_start(folder, dry):
    done = dry()
    assert (done.exit_code, list(folder.iterdir())) == (0, []), done.output
    states = [line.split("  ")[1].split()[0] for line in done.stdout.splitlines()[:-1]]
    assert states == ["host", "packages", "models", "data", "rewards", "run"]
    assert "grpo_math (profile cpu) is ready to run; nothing was launched" in done.stdout


@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_what_lint_refuses_does_not_run(folder, words):
    file = [GRPO, "--profile", "cpu", "generator.sampling.temperature=0.7"]
    done = CliRunner().invoke(app, ["run", *file, *words])
    assert (done.exit_code, list(folder.iterdir())) == (1, [])
    assert "error[L411]: log-probabilities come from different measures" in done.stderr


def test_every_obstacle_is_named(folder, dry):
    (folder / "rows.jsonl").write_text("no JSON\n" * 200)
    (folder / "taken").mkdir()
    (folder / "taken/job.json").touch()
    (folder / "taken/metrics.jsonl").write_text("{}\n")
    words = ("--set", f'gsm8k.source=jsonl("{folder / "rows.jsonl"}")', "--run-dir", "taken")
    done = dry(*words)
    assert done.exit_code == 4
    failed = [line.split()[0] for line in done.stdout.splitlines() if " FAILED " in line]
    assert failed == ["data", "run"]
    assert "is not ready: 2 of 6 checks failed" in done.stdout


@pytest.mark.parametrize(
    ("words", "need"),
    [
        ((), "3 checkpoints of 6.8 MiB in "),
        (("schedule.steps=3", "checkpoint.keep=1"), "1 checkpoint of 6.8 MiB in "),
        (
            ('checkpoint.export=hf("out")',),
            "3 checkpoints of 6.8 MiB and an export of 2.3 MiB in ",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_on_the_disk_are_an_obstacle(
    folder, dry, monkeypatch, words, need
):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    done = dry(*words)
    assert f"run folder   FAILED  not enough disk space for {need}" in done.stdout
    assert "5.0 MiB are free; free some space, or choose" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "seconds", "said"),
    [
        ("import os\nos._exit(3)\n", 60.0, "importing grading.py:2 ends the process "),
        (
            "import time\ntime.sleep(99)\n",
            10.0,
            "importing grading.py:2 did not finish",
        ),
    ],
)
def test_a_reward_whose_import_does_not_end_well_is_an_obstacle(
    folder, monkeypatch, body, seconds, said
):
    monkeypatch.setattr(data_checks, "SECONDS", seconds)
    (folder / "grading.py").write_text(f"{body}def f(response): ...\n")
    text = flagship(folder).replace("forge 1", 'forge 1\nimport python "grading.py" as own', 1)
    (folder / "t.forge").write_text(re.sub("reward correct .*", "reward correct = own.f", text))
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert "rewards      FAILED  reward correct (f of grading.py, t.forge:" in done.stdout
    assert f"): {said}" in done.stdout


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("controller.json", "; it is a checkpoint of a run: `forgec export RUN --to FOLDER` "),
        ("notes.txt", "\n"),
    ],
)
def test_a_folder_that_holds_no_model_is_an_obstacle(folder, dry, file, said):
    (folder / "mine").mkdir()
    (folder / "mine" / file).write_text("{}")
    done = dry("--set", f'policy.source=local("{folder}/mine")')
    assert done.exit_code == 4, done.output
    assert f"-mine is not a model folder: it has no config.json{said}" in done.stdout


def test_a_run_in_place_of_a_model_is_an_error(folder, dry):
    (folder / "mine").mkdir()
    (folder / "mine" / "job.json").write_text("{}")
    done = dry("--set", f'policy.source=local("{folder}/mine")')
    assert done.exit_code == 1, done.output
    assert f"error[P210]: `{folder}/mine` is a run, not a model" in done.stderr
    assert "`forgec export " in done.stderr


def test_a_judge_that_is_not_reached_is_an_obstacle(folder):
    text = flagship(folder)
    judge = 'service judge : openai("m") { url = "http://127.0.0.1:9/v1" }\nreward correct = '
    judge += 'judge.score(prompt = "Grade {response} from 1 to 5", scale = [1, 5])'
    judge += " { effects = [net], timeout = 2s, retries = 0 }"
    (folder / "t.forge").write_text(re.sub("reward correct .*", judge, text))
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run", "--profile", "cpu"])
    assert "ConnectionError: http://127.0.0.1:9/v1 cannot be reached: " in done.stdout, done.output


def test_an_environment_that_cannot_be_made_is_an_obstacle(folder):
    text = (Path(GRPO).parent / "guess_math.forge").read_text("utf-8")
    text = with_few_rows(text, folder)
    (folder / "environments").mkdir()
    source = (Path(GRPO).parent / "environments/sums.py").read_text("utf-8")
    (folder / "environments/sums.py").write_text(source.replace("= guesses, hint", "= 1 / 0, hint"))
    (folder / "t.forge").write_text(text)
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert "environments FAILED  environment game: Guess(guesses = 3) failed: " in done.stdout


def refused(*words):
    """What a run that does not start says."""
    done = CliRunner().invoke(app, ["run", *words])
    assert isinstance(done.exception, LaunchError) or done.exit_code == 4, done.output
    return f"{done.output}{done.exception}"


def guessing(folder, *edits, sums=()):
    """guess_math.forge with edits, of it and of its environment."""
    shipped = Path(GRPO).parent
    text = (shipped / "guess_math.forge").read_text("utf-8")
    text = with_few_rows(text, folder)
    source = (shipped / "environments/sums.py").read_text("utf-8")
    for old, new in sums:
        assert old in source, old
        source = source.replace(old, new, 1)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    (folder / "environments").mkdir()
    (folder / "environments/sums.py").write_text(source)
    (folder / "t.forge").write_text(text)


@pytest.mark.parametrize("words", [("--dry-run",), pytest.param((), marks=pytest.mark.full)])
def test_an_environment_that_is_broken_in_step_does_not_start(folder, words):
    guessing(folder, sums=[("ANSWER.search(turn", "nowhere.search(turn")])
    said = refused("t.forge", *words)
    assert "environment game fails in `step` for data/arithmetic.jsonl:" in said
    assert "NameError: name 'nowhere' is not defined" in said
    assert not (folder / "runs").exists()


def guessed(folder, *edits, pipeline=lambda text: text):
    """The project of `forgec init --template agent`, with edits of the agent and of its file."""
    from forgedsl.templates import project

    for path, text in project("agent").items():
        for old, new in edits if path.startswith("agents/") else ():
            assert old in text, old
            text = text.replace(old, new, 1)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(
            with_few_rows(pipeline(text), folder) if path.endswith(".forge") else text
        )


@pytest.mark.full
def test_an_agent_is_run_up_to_its_first_request(folder):
    guessed(folder)
    done = CliRunner().invoke(app, ["run", "agent.forge", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "environments ok      game\n" in done.stdout


@pytest.mark.full
def test_an_agent_that_is_broken_does_not_start(folder):
    guessed(folder, ("= [dict(message)", "= nowhere or [dict(message)"))
    said = refused("agent.forge", "--dry-run")
    assert "environment game fails in `run` for data/arithmetic.jsonl:" in said
    assert "NameError: name 'nowhere' is not defined" in said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(
            '["sh", "-c", "echo pip install desk >&2; exit 1"]',
            "pip install desk (its program ended",
            marks=pytest.mark.full,
        ),
        ('["sh", "-c", "exit 2"]', "its program ended with exit code 2"),
    ],
)
def test_a_program_that_never_starts_does_not_start(folder, command, said):
    def replaced(text):
        environment = "environment game = guesser.Guesser(guesses = guesses)"
        assert environment in text
        text = text.replace(environment, f"environment game = program({command})")
        return (
            text.replace('"solved"', "")
            .replace("r.rewards.solved", "r.rewards.reward")
            .replace("r.rewards.early", "r.rewards.reward")
        )

    guessed(folder, pipeline=replaced)
    assert said in refused("agent.forge", "--dry-run")


JUDGE = """service judge : openai("m") { url = "http://127.0.0.1:9/v1" }
reward early = judge.score(prompt = "Grade {response} from 1 to 5", scale = [1, 5]) {
  effects = [net], timeout = 2s, retries = 0
}
"""


@pytest.mark.full
@pytest.mark.parametrize("words", [("--dry-run",), pytest.param((), marks=pytest.mark.full)])
def test_a_judge_beside_an_environment_is_asked_too(folder, words):
    guessing(
        folder, ("reward early(r: Rollout) -> f32 = clamp(r.rewards.early, 0.0, 1.0)\n", JUDGE)
    )
    said = refused("t.forge", *words)
    assert "ConnectionError: http://127.0.0.1:9/v1 cannot be reached: " in said
    assert not (folder / "runs").exists()


def test_a_reward_that_names_nothing_does_not_start(folder):
    (folder / "grading.py").write_text("def f(response):\n    return nowhere\n")
    text = flagship(folder).replace("forge 1", 'forge 1\nimport python "grading.py" as own', 1)
    (folder / "t.forge").write_text(re.sub("reward correct .*", "reward correct = own.f", text))
    said = refused("t.forge", "--profile", "cpu")
    assert "reward correct (f of grading.py, t.forge:" in said
    assert "NameError: name 'nowhere' is not defined" in said
    assert not (folder / "runs").exists()


LOOKUP = """    @tool
    def lookup(self, key: str) -> str:
        \'\'\'Look up.\'\'\'
        return key

    parts ="""
TOOLS = (("    parts =", LOOKUP), ("environment import ", "environment import tool, "))


@pytest.mark.full
@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("row.question", "the prompt of problems is plain text, which lists no tools"),
        ('chat("add", row.question)', "the chat template of model policy does not show `tools`"),
    ],
)
def test_tools_that_the_policy_never_sees_are_said(folder, prompt, why):
    guessing(folder, ("prompt = row.question", f"prompt = {prompt}"),
             ("max_prompt_tokens = 8", "max_prompt_tokens = 64"), sums=TOOLS)  # fmt: skip
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert f"note: the prompt does not mention `lookup` of environment game: {why}" in done.output


def test_tools_that_are_named_in_the_prompt_are_seen(folder):
    prompt = 'prompt = "lookup(key) helps. " + row.question'
    guessing(folder, ("prompt = row.question", prompt),
             ("max_prompt_tokens = 8", "max_prompt_tokens = 64"), sums=TOOLS)  # fmt: skip
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert "environments ok      game\n" in done.output


def test_rewards_of_streamed_rows_are_tried(folder):
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/train.jsonl").write_text('{"question": "1+1=", "answer": "#### 2"}\n' * 9)
    words = ('gsm8k.source=hf("a/b", split = "train")', "gsm8k.streaming=true")
    found = compile_program(Request(path=Path(GRPO), profile="cpu", overrides=words))
    job = found.state.job.job
    looks = data_checks.check_datasets(job, folder, ["gsm8k"], offline=False)
    assert (looks["gsm8k"].rows, len(looks["gsm8k"].answers)) == (None, 2)


def test_gpus_that_are_not_there(folder, monkeypatch):
    monkeypatch.setattr(gpus, "detect_gpus", list)
    done = CliRunner().invoke(
        app, ["run", GRPO, "--dry-run", "--profile", "gpu_tiny", "--set", "cluster.gpus=1"]
    )
    assert "host         FAILED  the plan uses 1 GPU, but this host has none" in done.stdout


def test_a_reward_reads_its_files_from_any_folder(folder, monkeypatch):
    (folder / "job/rewards").mkdir(parents=True)
    (folder / "job/data").mkdir()
    (folder / "job/data/words.txt").write_text("42")
    (folder / "job/rewards/own.py").write_text(
        "from pathlib import Path\n\nFILE = Path(__file__).parent.parent / 'data/words.txt'\n\n"
        "def f(response):\n    return float(FILE.read_text() in response)\n"
    )
    text = flagship(folder / "job").replace(
        "forge 1", 'forge 1\nimport python "rewards/own.py" as own', 1
    )
    own = 'reward correct = own.f { effects = [io], files = ["data/words.txt"] }'
    (folder / "job/t.forge").write_text(re.sub("reward correct .*", own, text))
    done = CliRunner().invoke(app, ["run", "job/t.forge", "--dry-run"])
    assert "rewards      ok      correct returned 1" in done.stdout


def test_an_answer_for_which_a_reward_fails_is_said(folder):
    (folder / "own.py").write_text("def f(response):\n    return float(int(response) > 0)\n")
    text = flagship(folder).replace("forge 1", 'forge 1\nimport python "own.py" as own', 1)
    (folder / "t.forge").write_text(re.sub("reward correct .*", "reward correct = own.f", text))
    done = CliRunner().invoke(app, ["run", "t.forge", "--dry-run"])
    assert "correct returned 1 for the target, and failed for the answer" in done.stdout


def test_a_dry_run_is_of_a_start(folder, dry):
    assert dry("--stub").exit_code == 2


def test_text_that_the_tokenizer_does_not_know_is_not_ok(folder, dry):
    rows = [{"question": f"{i}+1=Z", "answer": f"#### {i + 1}"} for i in range(200)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = dry("--set", f'gsm8k.source=jsonl("{folder / "rows.jsonl"}")')
    assert "  data         warning gsm8k: 200 rows, 200 of 200 rows have text that" in done.stdout
    assert 'does not know ("Z"): the model reads' in done.stdout


def test_rows_that_would_be_left_out_are_said(folder, dry):
    rows = [{"question": "1+1=", "answer": "#### 2"}] * 9 + [{"answer": "#### 3"}]
    rows.append({"question": "1+" * 300, "answer": "#### 4"})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = dry("--set", f'gsm8k.source=jsonl("{folder / "rows.jsonl"}")')
    assert "gsm8k: 11 rows, 2 of 11 rows left out (bad row: 1, too long: 1)" in done.stdout
    assert "rows.jsonl:10: " in done.stdout
    assert "rows.jsonl:11: " in done.stdout
