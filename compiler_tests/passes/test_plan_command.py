"""`forgec plan`, `forgec diff` and `forgec run plan.json`, and the faults a plan must catch."""

import json
import subprocess

import pytest
from forge_commands import CliRunner
from forge_texts import GRPO, changed

from forgedsl.cli.app import app
from forgedsl.cli.overrides import SideError
from forgedsl.cli.planning import read_job

RUN = CliRunner()
JSONL = ('hf("openai/gsm8k", split = "train")', 'jsonl("rows.jsonl")')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    (tmp_path / "grpo.forge").write_text(changed(GRPO, JSONL))
    return tmp_path


def forgec(*arguments):
    result = RUN.invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def plan(*arguments):
    return forgec("plan", "grpo.forge", "--host", "8xH200", *arguments)


def test_text_has_every_section_and_fits_in_a_hundred_columns(folder):
    result = plan()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for title in ("placement", "memory", "queues", "policy age", "liveness"):
        assert title in lines
    assert {
        "cost of a step, estimated for the longest samples",
        "groups without a gradient (dead groups)",
    } <= {*lines}
    assert max(map(len, lines)) <= 100
    assert "(32 + 1 - 2) // 16 = 1 step, allowed 1" in result.stdout


def test_json_holds_the_job_and_its_diagnostics(folder):
    document = json.loads(plan("--format", "json").stdout)
    assert document["format_version"] == "1.0"
    assert document["job"]["schedule"]["credits"] == 32
    assert "A307" in [d["code"] for d in document["diagnostics"]]
    (folder / "said.json").write_text(json.dumps(document))
    plan("-o", "plan.json")
    assert read_job(folder / "said.json") == read_job(folder / "plan.json")


def test_json_stays_json_when_there_is_no_plan(folder):
    result = plan("--format", "json", "--set", "generator.replicas=999")
    assert result.exit_code == 4
    document = json.loads(result.stdout)
    assert document["job"] is None
    errors = [d["code"] for d in document["diagnostics"] if d["severity"] == "error"]
    assert errors == ["P203"]


def test_a_written_plan_is_the_job_with_its_inputs_beside_it(folder):
    assert plan("-o", "out/plan.json").exit_code == 0
    job = read_job(folder / "out/plan.json")
    assert job.name == "grpo"
    assert (folder / "out/inputs/rows.jsonl").is_file()


def test_plans_are_deterministic(folder):
    plan("-o", "a/plan.json")
    plan("-o", "b/plan.json")
    assert (folder / "a/plan.json").read_bytes() == (folder / "b/plan.json").read_bytes()


def test_an_edited_plan_is_refused(folder):
    plan("-o", "plan.json")
    path = folder / "plan.json"
    document = json.loads(path.read_text())
    document["job"]["schedule"]["steps"] = 3
    path.write_text(json.dumps(document))
    with pytest.raises(SideError, match="changed after it was planned"):
        read_job(path)


def test_a_plan_of_another_format_is_refused(folder):
    plan("-o", "plan.json")
    document = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**document, "format_version": "2.0"}))
    with pytest.raises(SideError, match=r"it has format 2.0, but this forgec reads 1.x"):
        read_job(folder / "plan.json")


def test_run_takes_a_plan_as_it_is(folder, monkeypatch):
    from forgedsl.cli import run

    seen = []
    monkeypatch.setattr(run, "launch", lambda job, run_dir, **_: seen.append((job, run_dir)) or 0)
    plan("-o", "plan.json", "--set", "schedule.steps=7")
    assert forgec("run", "plan.json", "--run-dir", "r").exit_code == 0
    ((job, run_dir),) = seen
    assert job.schedule.steps == 7
    assert job == read_job(folder / "plan.json")
    assert (folder / run_dir / "inputs/rows.jsonl").is_file()


def test_nothing_can_be_set_on_a_plan(folder):
    plan("-o", "plan.json")
    assert forgec("run", "plan.json", "--set", "run.seed=3").exit_code == 2


# ---- against, diff


def test_against_says_what_differs(folder):
    plan("-o", "plan.json")
    result = plan("--against", "plan.json", "--set", "trainer.optimizer.lr=2e-6")
    assert result.exit_code == 0
    assert "trainer.optimizer.lr  1e-06 -> 2e-06" in result.stdout


@pytest.mark.parametrize(("edit", "code"), [("run.seed=17", 0), ("run.seed=18", 3)])
def test_detailed_exitcode(folder, edit, code):
    plan("-o", "plan.json")
    result = plan("--against", "plan.json", "--detailed-exitcode", "--set", edit)
    assert result.exit_code == code


def test_detailed_exitcode_alone_is_bad_usage(folder):
    assert plan("--detailed-exitcode").exit_code == 2


@pytest.mark.parametrize(
    ("edit", "fail_on", "code"),
    [
        (("lr = 1e-6", "lr = 2e-6"), "numerics", 1),
        (("replicas = 2", "replicas = 1"), "numerics", 0),
        (("replicas = 2", "replicas = 1"), "placement", 1),
        (("forge 1\n", "forge 1\n# hi\n"), "observability", 0),
    ],
)
def test_fail_on(folder, edit, fail_on, code):
    (folder / "new").mkdir()
    (folder / "new/rows.jsonl").write_bytes((folder / "rows.jsonl").read_bytes())
    (folder / "new/grpo.forge").write_text(changed((folder / "grpo.forge").read_text(), edit))
    result = forgec("diff", "grpo.forge", "new/grpo.forge", "--fail-on", fail_on)
    assert result.exit_code == code


def test_diff_of_a_run_folder(folder):
    plan("-o", "plan.json")
    (folder / "run").mkdir()
    job = read_job(folder / "plan.json")
    (folder / "run/job.json").write_text(job.model_dump_json())
    result = forgec("diff", "run", "plan.json")
    assert "none: the jobs are the same" in result.stdout


def test_diff_of_git_revisions(folder):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    text = changed((folder / "grpo.forge").read_text(), ("lr = 1e-6", "lr = 3e-6"))
    (folder / "grpo.forge").write_text(text)
    for old in ("git:HEAD", "git:HEAD:grpo.forge"):
        result = forgec("diff", old, "grpo.forge")
        assert "1e-06 -> 3e-06" in result.stdout
    assert forgec("diff", "git:NOPE", "grpo.forge").exit_code == 2


def test_what_cannot_be_read_is_exit_two(folder):
    assert forgec("diff", "grpo.forge", "missing.json").exit_code == 2
    assert plan("--against", "rows.jsonl").exit_code == 2


# ---- the planted faults of a plan

ASYNC = "schedule async { steps = 500, max_policy_age = 1 }"
FAULTS = [
    ("twelve GPUs", [], ["generator.replicas=4"], "P203",
     ["the host has 8 GPUs, but the plan needs 12", "trainer", "generator"]),
    ("heads", [("procs = 4, optimizer", "procs = 3, parallel.tp = 3, optimizer"),
               ("seq_len = 4096", "seq_len = 4095")], [], "P204",
     ["tp = 3 does not divide 16 heads", "set tp to one of 1, 2, 4, 8"]),
    ("context", [], ["generator.sampling.max_tokens=8192"], "D605",
     ["512 prompt + 8192 completion = 8704 tokens exceed the context 4096"]),
    ("age", [], ["schedule.max_policy_age=0"], "A302",
     ["policy age 0: the lowest possible worst age is 1", "(32 + 1 - 2) // 16 = 1"]),
    ("starvation", [("  batch   = replay(rollout",
                     "  kept = rollout.keep(mixed(score))\n  batch = replay(kept")], [], "A306",
     ["drop every group", "starve_timeout"]),
    ("cycle", [("  score   = total(rollout", "  kept = rollout.keep(mixed(score))\n"
                "  score   = total(kept"), ("replay(rollout", "replay(kept")], [], "F105",
     ["`score` is used before it is defined", "only `sync`, `observe` and a buffer"]),
    ("field", [("prompt.target)", "target)")], [], "F101",
     ["undefined stream `target`", "write `prompt.target`"]),
    ("function", [("  score   = total(rollout", "  score   = total(mixed")], [], "F101",
     ["undefined stream `mixed`", "call it, `mixed(...)`"]),
    ("memory", [(ASYNC, "colocate = [trainer, generator]\nschedule sync { steps = 5 }")],
     ["generator.engine.gpu_memory=0.9"], "P205",
     ["`trainer` and `generator` together need", "on a GPU that has 141.0 GiB", "fits"]),
    ("fp8", [], ["generator.dtype=f32", "generator.engine.weight_dtype=fp8"], "F113",
     ["`generator` cannot quantize f32 weights to fp8", "set `dtype = bf16` of the service"]),
    ("replicas", [], ["generator.replicas=999"], "P203",
     ["the host has 8 GPUs, but the plan needs 2002", "procs 2 x gpus 1 x replicas 999"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "overrides", "code", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_planted_faults(folder, edits, overrides, code, words):
    text = changed((folder / "grpo.forge").read_text(), *edits)
    (folder / "grpo.forge").write_text(text)
    result = plan(*(part for edit in overrides for part in ("--set", edit)))
    assert result.exit_code == (4 if code in ("P203", "P205") else 1)
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error[")]
    assert [line[6:10] for line in errors] == [code]
    assert all(word in result.stderr for word in words), result.stderr
    assert "--> " in result.stderr
