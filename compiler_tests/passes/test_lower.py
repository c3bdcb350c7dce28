"""Lowering: files, hashes, datasets of evals, rewards, constants, origins, and the lock."""

import hashlib
import tomllib

import pytest
from forge_texts import GRPO, SFT, changed, lower_of

from forgedsl.lower.lock import lock_text

EVAL = 'eval held_out { dataset = gsm8k, split = "test", score = correct, every = 50 }\n'
MODEL = ('hf("Qwen/Qwen3-1.7B")', 'local("runs/first")')
JSONL = ('hf("openai/gsm8k", split = "train")', 'jsonl("data/rows.jsonl")')


def job_of(text, folder, *overrides):
    lowered, diagnostics = lower_of(text, *overrides, folder=folder)
    assert lowered is not None, diagnostics
    return lowered.job


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows_in(folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text('{"question": "1+1", "answer": "2"}\n')
    return path


def test_local_file_becomes_an_input(tmp_path):
    path = rows_in(tmp_path / "data")
    lowered, _ = lower_of(changed(GRPO, JSONL), folder=tmp_path)
    source = lowered.job.datasets["gsm8k"].source
    assert (source.path, source.sha256) == ("inputs/data/rows.jsonl", sha256(path))
    assert lowered.files == ((tmp_path / "data/rows.jsonl", "inputs/data/rows.jsonl"),)


def test_file_above_the_folder_stays_inside_inputs(tmp_path):
    rows_in(tmp_path / "data")
    (tmp_path / "pipes").mkdir()
    text = changed(GRPO, JSONL, ("data/rows", "../data/rows"))
    lowered, _ = lower_of(text, folder=tmp_path / "pipes")
    assert lowered.job.datasets["gsm8k"].source.path == "inputs/up/data/rows.jsonl"


def test_files_whose_copies_would_have_one_name_are_kept_apart(tmp_path):
    above = rows_in(tmp_path / "data")
    beside = rows_in(tmp_path / "pipes/up/data")
    beside.write_text('{"question": "2+2", "answer": "4"}\n')
    text = changed(
        GRPO,
        JSONL,
        (
            'jsonl("data/rows.jsonl")',
            'mixture([jsonl("../data/rows.jsonl"), jsonl("up/data/rows.jsonl")], weights = [1, 1])',
        ),
    )
    lowered, _ = lower_of(text, folder=tmp_path / "pipes")
    assert {path.resolve(): name for path, name in lowered.files} == {
        above: "inputs/up/data/rows.jsonl",
        beside: f"inputs/{sha256(beside)[:8]}-rows.jsonl",
    }


def test_absolute_path_keeps_only_its_name(tmp_path):
    path = rows_in(tmp_path / "elsewhere")
    text = changed(GRPO, JSONL, ("data/rows.jsonl", str(path)))
    lowered, _ = lower_of(text, folder=tmp_path)
    name = f"inputs/{sha256(path)[:8]}-rows.jsonl"
    assert lowered.job.datasets["gsm8k"].source.path == name
    assert lowered.files == ((path, name),)


def test_shipped_file_is_named_not_copied(tmp_path):
    text = changed(GRPO, JSONL, ("data/rows.jsonl", "forgedsl:data/arithmetic.jsonl"))
    lowered, _ = lower_of(text, folder=tmp_path)
    assert lowered.job.datasets["gsm8k"].source.path == "forgedsl:data/arithmetic.jsonl"
    assert lowered.files == ()


def test_missing_file(tmp_path):
    text = changed(GRPO, JSONL)
    lowered, diagnostics = lower_of(text, folder=tmp_path)
    assert lowered is None
    assert [(d.code, d.message) for d in diagnostics] == [
        ("P210", "`data/rows.jsonl` does not exist")
    ]
    span = diagnostics[0].span
    assert text[span.start : span.end] == 'jsonl("data/rows.jsonl")'


def test_a_run_folder_is_no_model(tmp_path):
    (tmp_path / "runs/first").mkdir(parents=True)
    for name in ("job.json", "session.json"):
        (tmp_path / "runs/first" / name).write_text("{}")
    lowered, (found,) = lower_of(changed(GRPO, MODEL), folder=tmp_path)
    assert lowered is None
    message = "`runs/first` is a run, not a model: it has no `config.json`"
    assert (found.code, found.message) == ("P210", message)
    assert found.help.startswith("write the weights of a Session with `trainer.export(FOLDER)`")


def test_files_in_a_missing_folder_are_one_error(tmp_path):
    both = 'mixture([jsonl("data/a.jsonl"), jsonl("data/b.jsonl")], weights = [0.5, 0.5])'
    lowered, diagnostics = lower_of(
        changed(GRPO, JSONL, ('jsonl("data/rows.jsonl")', both)), folder=tmp_path
    )
    assert lowered is None
    (found,) = diagnostics
    assert found.message.startswith("there is no folder `data` beside this file: `data/a.jsonl` ")
    assert len(found.related) == 1


def test_a_file_with_nearly_the_name_is_named(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/row.jsonl").touch()
    _, diagnostics = lower_of(changed(GRPO, JSONL), folder=tmp_path)
    assert diagnostics[0].help == "did you mean `data/row.jsonl`?"


def test_eval_with_a_split_has_a_dataset_of_its_own(tmp_path):
    job = job_of(GRPO + EVAL, tmp_path)
    assert job.evals["held_out"].dataset == "gsm8k.held_out"
    assert job.datasets["gsm8k.held_out"].source.split == "test"
    assert job.datasets["gsm8k.held_out"].shuffle is None
    assert job.datasets["gsm8k"].source.split == "train"
    assert job.evals["held_out"].service == "generator"


def test_split_of_a_file(tmp_path):
    rows_in(tmp_path / "data")
    lowered, diagnostics = lower_of(changed(GRPO + EVAL, JSONL), folder=tmp_path)
    assert lowered is None
    assert [d.code for d in diagnostics] == ["P212"]


def test_python_reward(tmp_path):
    path = tmp_path / "sandbox.py"
    path.write_text("def check(prompt, response, target):\n    return 1.0\n")
    text = changed(
        GRPO,
        ("as rl\n", 'as rl\nimport python "sandbox.py" as sandbox\n'),
        ("rl.math_equal(tolerance = 1e-6)", "sandbox.check { procs = 3, timeout = 20s }"),
    )
    reward = job_of(text, tmp_path).rewards["correct"]
    assert (reward.kind, reward.function, reward.path) == ("python", "check", "inputs/sandbox.py")
    assert (reward.sha256, reward.inputs["target"]) == (sha256(path), "target")
    assert (reward.procs, reward.timeout) == (3, 20.0)


READING = (
    ("as rl\n", 'as rl\nimport python "rewards/words.py" as words\n'),
    ("rl.math_equal(tolerance = 1e-6)", 'words.known { effects = [io], files = ["data"] }'),
)


def test_files_of_a_python_reward_are_copied_to_the_same_places(tmp_path):
    for name, text in {
        "rewards/words.py": "def known(response, target):\n    return 1.0\n",
        "data/words.txt": "one two",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made, _ = lower_of(changed(GRPO, *READING), folder=tmp_path)
    assert dict(made.files) == {
        tmp_path / "data": "inputs/data", tmp_path / "rewards/words.py": "inputs/rewards/words.py"
    }  # fmt: skip
    before = made.job.rewards["correct"].files
    assert before.keys() == {"inputs/data"}
    (tmp_path / "data/words.txt").write_text("three")
    after = job_of(changed(GRPO, *READING), tmp_path).rewards["correct"].files
    assert before != after


def test_files_of_a_reward_that_is_not_in_python_have_no_effect(tmp_path):
    text = changed(GRPO, ("rl.math_equal(tolerance = 1e-6)", 'rl.exact { files = ["data"] }'))
    with pytest.raises(AssertionError, match="`files` has no effect here: only a reward in Python"):
        lower_of(text, folder=tmp_path)


@pytest.mark.parametrize(
    "override", ["schedule.steps=30", "model.context=8192", "trainer.optimizer.lr=0.5"]
)
def test_a_setting_is_addressed_by_the_name_or_the_only_one_of_its_kind(tmp_path, override):
    plain, made = job_of(GRPO, tmp_path), job_of(GRPO, tmp_path, override)
    assert made.content_hash != plain.content_hash


def test_one_of_several_of_a_kind_has_to_be_named(tmp_path):
    text = GRPO + "\nreward more = rl.exact\n"
    with pytest.raises(AssertionError, match="name one of them: `correct`, `more`"):
        job_of(text, tmp_path, "reward.timeout=3s")


def test_constant_arguments_of_a_call(tmp_path):
    text = changed(
        GRPO,
        (
            "filter mixed",
            "advantage scaled(r: [G] f32, by: float) -> [G] f32 = r * by\nfilter mixed",
        ),
        ("rl.mean_baseline(score)", "scaled(score, by = 3.0)"),
    )
    job = job_of(text, tmp_path)
    node = next(n for n in job.nodes if n.name == "batch.adv")
    assert node.target == "advantage_scaled_by_3_0"
    assert [i.argument for i in node.inputs] == ["r"]
    assert "def advantage_scaled_by_3_0(r):" in job.program
    assert "r * 3.0" in job.program


def test_unused_declarations_stay_out_of_the_job(tmp_path):
    text = GRPO + "reward idle(r: Rollout) -> f32 = 1.0\n"
    job = job_of(text, tmp_path, "beta=0.0")
    assert set(job.services) == {"trainer", "generator"}
    assert set(job.rewards) == {"correct"}
    assert [field.name for field in job.losses["grpo"].fields] == [
        "logprob", "behavior", "adv", "mask"
    ]  # fmt: skip


def test_origins_point_into_the_file(tmp_path):
    job = job_of(GRPO, tmp_path)
    line = 1 + GRPO[: GRPO.index("service generator")].count("\n")
    assert job.origins["generator"] == f"test.forge:{line}:9"
    assert job.origins["rollout"] == next(n.origin for n in job.nodes if n.name == "rollout")


def test_only_the_stepped_service_has_an_optimizer(tmp_path):
    services = job_of(GRPO, tmp_path).services
    assert services["trainer"].optimizer.lr == 1e-6
    assert services["reference"].optimizer is None


def test_supervised_job(tmp_path):
    job = job_of(SFT, tmp_path)
    assert [node.op for node in job.nodes] == ["batches", "step"]
    assert (job.schedule.epochs, job.schedule.steps, job.schedule.age_bound) == (1, None, 0)
    assert job.datasets["tulu"].learn == "assistant_turns"
    assert job.datasets["tulu"].prompt is None


def test_job_round_trips_and_names_no_folder(tmp_path):
    job = job_of(GRPO, tmp_path)
    assert type(job).model_validate_json(job.model_dump_json()) == job
    assert str(tmp_path) not in job.model_dump_json()


def test_lock_is_toml_and_holds_the_hashes(tmp_path):
    path = rows_in(tmp_path / "data")
    job = job_of(changed(GRPO, JSONL), tmp_path)
    lock = tomllib.loads(lock_text(job))
    assert lock["job"] == job.content_hash
    assert lock["datasets"]["gsm8k"]["sha256"] == sha256(path)
    assert lock["models"]["policy"]["id"] == "Qwen/Qwen3-1.7B"
    assert len(lock["losses"]["grpo"]) == len(lock["kernels"]["grpo"]) == 64
    assert lock["packages"]["lark"] == "1.2.2"
    assert lock["defaults"]["titan"]["optimizer.eps"] == "1e-08"


def test_a_prompt_may_have_what_context_and_rows_leave_beside_a_completion(tmp_path):
    free = ("max_prompt_tokens = 512", "max_prompt_tokens = none")
    text = changed(GRPO + EVAL, free)
    short = job_of(
        text, tmp_path, "generator.sampling.max_tokens=100", "trainer.batch.seq_len=1000"
    )
    context = short.models["policy"].context
    assert short.datasets["gsm8k"].max_prompt_tokens == 900
    assert short.datasets["gsm8k.held_out"].max_prompt_tokens == context - 100
    assert job_of(GRPO, tmp_path).datasets["gsm8k"].max_prompt_tokens == 512


def test_a_python_reward_that_cannot_be_called_is_refused_without_lint(tmp_path):
    (tmp_path / "sandbox.py").write_text("def check(text):\n    return 1.0\n")
    text = changed(
        GRPO,
        ("as rl\n", 'as rl\nimport python "sandbox.py" as sandbox\n'),
        ("rl.math_equal(tolerance = 1e-6)", "sandbox.check"),
    )
    _, diagnostics = lower_of(text, folder=tmp_path)
    assert [d.code for d in diagnostics] == ["X802"]
