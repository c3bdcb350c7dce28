"""Modules: what an import brings, who may write over it, and what is said of mistakes."""

import json
import re
import shutil
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.explain import provenance
from forgedsl.ir.program import Ref
from forgedsl.lint.engine import lint_file
from forgedsl.lower.diff import compare
from forgedsl.lower.job import Job
from forgedsl.passes import Request, compile_program

COMMON = """\
forge 1

import "std/rl" as rl

## Longest completion.
param max_new : int = 8
## Clip of the ratio.
param eps : float = 0.2

require max_new < policy.context else "completions fit into the context"

model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }

dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question
  target = after(row.answer, "#### ")
  max_prompt_tokens = 32
}

service trainer : titan(policy) {
  procs = 1, optimizer.lr = 2e-4, batch { seq_len = 64, rows = 64 }
}
service generator : vllm(policy) { sampling { temperature = 1.0, max_tokens = max_new } }
service reference : titan(policy) { procs = 1 }

reward correct = rl.math_equal
reward brevity(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / max_new, 0.0, 1.0)
rubric score { score = correct + 0.1 * brevity, on_truncated = 0.0, on_error = drop }

advantage centred(r: [G] f32) -> [G] f32 = r - mean(r, G)

loss clipped(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv), mask)
}

profile cpu when cluster.gpus == 0 {
  trainer   { device = cpu, gpus = 0 }
  generator { device = cpu, gpus = 0 }
}
"""
SMALL = """\
forge 1

import "common" as common(max_new = 12)

## Completions per prompt.
param group : int = 4

flow train {
  prompt  = common.sums.draw(4)
  rollout = common.generator.sample(prompt, n = group)
  points  = common.score(rollout, prompt.target)
  adv     = common.centred(points)
  batch   = replay(rollout, adv = adv)
  common.trainer.step(batch, loss = common.clipped)
  sync common.trainer -> common.generator { every = 1, on_swap = recompute }
}

schedule sync { steps = 3 }
"""
WHOLE = COMMON.replace("max_new : int = 8", "max_new : int = 12") + (
    SMALL.split("import")[1].partition("\n")[2].replace("common.", "")
)


def edited(text, *edits):
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


@pytest.fixture
def write(tmp_path):
    """Write the two files, with edits, and give the path of the small one."""

    def make(*small, common=()):
        (tmp_path / "common.forge").write_text(edited(COMMON, *common), "utf-8")
        path = tmp_path / "small.forge"
        path.write_text(edited(SMALL, *small), "utf-8")
        return path

    return make


def found(path, **options):
    """(code, file, the words it is at, message) of every finding."""
    linted = lint_file(path, **options)
    return [
        (d.code, Path(d.span.file).name, text[d.span.start : d.span.end], d.message)
        for d in linted.diagnostics
        for text in [linted.sources[d.span.file].text]
    ]


def job_of(path, profile="cpu", *overrides) -> Job:
    compiled = compile_program(Request(path=path, profile=profile, overrides=overrides))
    assert compiled.state is not None
    assert not compiled.loaded.reporter.has_errors, list(compiled.loaded.reporter)
    assert compiled.state.job is not None
    return compiled.state.job.job


def program_of(path, profile="none", *overrides):
    return api.load(path, profile=profile, overrides=overrides).checked


# ---- what an import brings


def test_a_small_file_is_a_program_with_what_it_imports(write):
    path = write()
    assert found(path) == []
    assert found(path.with_name("common.forge")) == []
    program = program_of(path, "cpu")
    assert [*program.services] == ["common.trainer", "common.generator"]  # no reference: not used
    assert [*program.models] == ["common.policy"]
    assert program.services["common.trainer"].ctor_args == (Ref(name="common.policy"),)
    assert [*program.rewards] == ["common.correct", "common.brevity"]
    assert program.services["common.trainer"].settings["device"].value == "cpu"
    assert program.params["common.max_new"].value == 12


def plain(job):
    """A job as JSON without the names of modules, and without places."""
    text = json.dumps(job.model_dump(mode="json"))
    for old, new in (
        ("common.forge", "FILE"),
        ("whole.forge", "FILE"),
        ("common.", ""),
        ("common_", ""),
    ):
        text = text.replace(old, new)
    found = json.loads(text)
    for part in ("name", "params", "origins", "content_hash", "summary", "topology"):
        del found[part]
    for node in found["nodes"]:
        del node["id"], node["origin"]
    for loss in found["losses"].values():
        del loss["tree"]
    code = found.pop("program")
    found["code"] = [line.partition("  #")[0] for line in code.splitlines() if "`" not in line]
    return found


@pytest.mark.parametrize("profile", ["none", "cpu"])
def test_the_job_is_that_of_one_file_with_everything(write, tmp_path, profile):
    whole = tmp_path / "whole.forge"
    whole.write_text(WHOLE, "utf-8")
    one, two = plain(job_of(whole, profile)), plain(job_of(write(), profile))
    for part in one:
        assert one[part] == two[part], part


def test_a_job_needs_no_file_that_it_was_made_of(write, tmp_path):
    path = write()
    text = job_of(path).model_dump_json()
    shutil.rmtree(tmp_path)
    job = Job.model_validate_json(text)
    assert job.digest() == job.content_hash
    assert str(tmp_path) not in text
    assert job.origins["common.generator"].startswith("common.forge:")


def test_one_file_imported_twice_is_two_modules(write):
    path = write(
        ("max_new = 12)", 'max_new = 12)\nimport "common" as other(max_new = 6, eps = 0.5)'),
        ("= common.clipped", "= other.clipped"),
        ("common.score(", "other.score("),
    )
    assert found(path) == []
    job = job_of(path)
    assert "num_tokens / 6" in job.program
    assert job.services["common.generator"].sampling.max_tokens == 12
    assert (job.params["common.eps"], job.params["other.eps"]) == (0.2, 0.5)


def test_paths_are_relative_to_the_file_that_says_them(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    (shared / "data").mkdir(parents=True)
    own.mkdir()
    row = '{"question": "1", "answer": "#### 1"}\n'
    (shared / "data" / "rows.jsonl").write_text(64 * row)
    (shared / "ask.txt").write_text("Be brief.")
    (shared / "grade.py").write_text(
        "def short(prompt, response, target) -> float:\n    return response == target\n"
    )
    (shared / "models.forge").write_text(
        'model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }\n'
    )
    (shared / "common.forge").write_text(
        edited(
            COMMON,
            ('import "std/rl"', 'import "models" as models\nimport "std/rl"'),
            ("require max_new < policy.context", "require max_new < models.policy.context"),
            (COMMON[COMMON.index("model policy") : COMMON.index("dataset sums")], ""),
            ("param eps", 'import python "grade.py" as grade\nparam eps'),
            ("forgedsl:data/arithmetic.jsonl", "data/rows.jsonl"),
            ("row.question", 'chat(file("ask.txt"), row.question)'),
            ("reward correct = rl.math_equal", "reward correct = grade.short { timeout = 5s }"),
            *[("titan(policy)", "titan(models.policy)")] * 2,
            ("vllm(policy)", "vllm(models.policy)"),
        )
    )
    path = own / "small.forge"
    path.write_text(edited(SMALL, ('"common" as common', '"../shared/common" as common')))
    assert found(path) == []
    job = job_of(path)
    assert job.datasets["common.sums"].source.path == "inputs/up/shared/data/rows.jsonl"
    assert job.rewards["common.correct"].path == "inputs/up/shared/grade.py"
    assert [*job.models] == ["common.models.policy"]
    assert "Be brief." in job.program


# ---- who writes over it


def test_layers_over_what_a_module_says(write):
    path = write(
        ("schedule sync", "common { generator { sampling.max_tokens = group } }\nschedule sync"),
        ("schedule sync", "common.trainer.optimizer.lr = 1e-4\nschedule sync"),
        ("steps = 3 }", "steps = 3 }\nprofile long { common { max_new = 5 * group } }"),
    )

    def values(profile, *overrides):
        program = program_of(path, profile, *overrides)
        generator, trainer = (
            program.services["common.generator"],
            program.services["common.trainer"],
        )
        return [
            program.params["common.max_new"].value,
            generator.settings["sampling.max_tokens"].value,
            trainer.settings["optimizer.lr"].value,
        ]

    assert values("none") == [12, 4, 1e-4]
    assert values("long") == [20, 4, 1e-4]
    assert values("long", "common.max_new=30", "group=3") == [30, 3, 1e-4]
    assert values("none", "common.generator.sampling.max_tokens=9") == [12, 9, 1e-4]


def test_profiles_of_one_name_are_one_profile(write):
    path = write(("steps = 3 }", "steps = 3 }\nprofile cpu { schedule.steps = 7 }"))
    program = program_of(path, "cpu")
    assert program.schedule.settings["steps"].value == 7
    assert program.services["common.generator"].settings["device"].value == "cpu"
    chosen = api.load(path, host=api.Host(gpus=0)).checked
    assert chosen.profile == "cpu"


def test_what_a_module_says_of_its_own_run_stays_there(write):
    run = "flow warm { p = sums.draw(1) }\nschedule sync { steps = 9 }\ncheckpoint { every = 5 }\n"
    run += "eval held { dataset = sums, score = score, every = 1 }\nprofile cpu"
    here = ("cluster.gpus == 0 {", "cluster.gpus == 0 {\n  schedule.steps = 1, held.every = 2")
    path = write(common=(("profile cpu", run), here))
    job = job_of(path)
    assert (job.schedule.steps, job.checkpoint.every, job.evals) == (3, None, {})


def test_explain_says_where_a_value_of_a_module_comes_from(write):
    path = write()
    states = provenance.layers(path, "cpu", ["common.generator.sampling.max_tokens=5"], [])
    page = provenance.explain("common.generator.sampling.max_tokens", states)
    assert "module common" in page
    assert "12 (written max_new)" in page
    assert "common.forge:24:" in page
    page = provenance.explain("common.max_new", states)
    assert "a parameter of module `common`" in page
    assert "small.forge:3:37" in page
    assert "profile cpu" in provenance.explain("common.trainer", states)
    page = provenance.explain("common", states)
    assert re.search(r"eps +0\.2 +default +\S+common\.forge:8:21$", page, re.MULTILINE)
    assert "generator  a vLLM engine" in page
    assert provenance.explain("other", states) is None


def test_a_changed_module_is_a_changed_job(write):
    before = job_of(write())
    after = job_of(write(common=(("lr = 2e-4", "lr = 3e-4"), ("0.1 * brevity", "0.2 * brevity"))))
    changes = {change.path: change.where for change in compare(before, after)}
    assert changes.keys() == {"common.trainer.optimizer.lr", "rubric common.score"}
    assert all(where.startswith("common.forge:") for where in changes.values())


# ---- mistakes

MISUSES = [
    ("F101", ("common.sums.draw", "common.sum.draw"), "sum", "has no member"),
    ("F101", ("loss = common.clipped", "loss = common.cliped"), "common.cliped", "no loss"),
    ("F101", ("generator.sample(", "generator.sampel("), "sampel", "no method"),
    ("F101", ("sync common.trainer", "sync common.trainr"), "common.trainr", "no service"),
    ("F101", ("int = 4", "int = common.max_nwe"), "max_nwe", "has no member"),
    ("F109", ("int = 4", "int = common"), "common", "is a module"),
    ("F109", ("int = 4", "int = common.centred"), "centred", "not a constant"),
    ("F103", ("int = 4", "int = common.generator.replica"), "replica", "no setting"),
    ("F103", ("max_new = 12", "max_nwe = 12"), "max_nwe", "has no parameter"),
    ("F109", ("max_new = 12", 'max_new = "a"'), '"a"', "must be an integer"),
    ("F114", ("max_new = 12", "12"), "12", "by name"),
    ("F119", ("common.centred(points)", "common.eps(points)"), "common.eps", "is a constant"),
    ("F119", ("common.centred(points)", "common.policy(points)"), "common.policy", "is a model"),
    ("F102", ("param group", "param common : int = 1\nparam group"), "common", "declared twice"),
    ("F103", ("schedule sync", "common.trainer.prcs = 1\nschedule sync"), "prcs", "no setting"),
    ("F101", ("schedule sync", "common.trainr.procs = 1\nschedule sync"), "trainr", "no member"),
    ("F119", ("schedule sync", "common.schedule.steps = 1\nschedule sync"), "schedule",
     "a setting of the whole run"),
    ("F119", ("schedule sync", "common { run { seed = 1 } }\nschedule sync"), "run",
     "a setting of the whole run"),
    ("F101", ("schedule sync", "loss mine = common.clippd\nschedule sync"), "clippd", "no member"),
    ("F101", ("schedule sync", "reward mine = common.corect\nschedule sync"), "corect", "no func"),
    ("F101", ("schedule sync", "service s : titan(common.polcy) {}\nschedule sync"),
     "common.polcy", "no model"),
    ("F120", ("param group", "require common.max_new < 3\nparam group"),
     "require common.max_new < 3", "this requirement is not met"),
    ("F115", ('"common" as', '"comon" as'), '"comon"', "there is no module"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "edit", "words", "message"), MISUSES)
def test_a_misuse_is_one_message_at_the_word(write, code, edit, words, message):
    ((its_code, file, its_words, text),) = found(write(edit))
    assert (its_code, file, its_words) == (code, "small.forge", words)
    assert message in text


RUNS = "flow warm {}\neval held { dataset = sums, score = score, every = 1 }\nprofile cpu"
LEFT = [
    (("common.centred(", "common.warm("), "warm", "which an import does not provide"),
    (("common.score(", "common.held("), "held", "an eval of `common`"),
    (("common.sums.draw", "common.cpu.draw"), "cpu", "a profile of `common`"),
    (("int = 4", "int = common.checkpoint.keep"), "checkpoint", "of the whole run"),
]


@pytest.mark.parametrize(("edit", "words", "message"), LEFT)
def test_what_an_import_does_not_bring_is_said_by_name(write, edit, words, message):
    ((code, file, its_words, text),) = found(write(edit, common=(("profile cpu", RUNS),)))
    assert (code, file, its_words) == ("F119", "small.forge", words)
    assert message in text


INSIDE = [
    ("F103", ("temperature = 1.0", "temprature = 1.0"), "temprature"),
    ("F101", ("lr = 2e-4", "lr = group"), "group"),
    ("F101", ("ratio * adv, clip", "rato * adv, clip"), "rato"),
    ("T702", ("ratio * adv, clip", "ratio * mask, clip"), "mask"),
    ("S005", ("procs = 1, optim", "procs = , optim"), "procs ="),
    ("F120", ("max_new < policy.context", "max_new < 10"),
     'require max_new < 10 else "completions fit into the context"'),
    ("L405", ("exp(clamp(logprob - behavior, -10.0, 10.0))", "exp(logprob - behavior)"),
     "exp(logprob - behavior)"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "edit", "words"), INSIDE)
def test_a_mistake_in_a_module_is_shown_there(write, code, edit, words):
    path = write(common=(edit,))
    assert [finding[:3] for finding in found(path)] == [(code, "common.forge", words)]


def test_a_parameter_without_a_value_is_asked_of_the_import(write):
    path = write(("(max_new = 12)", ""), common=(("max_new : int = 8", "max_new : int"),))
    ((code, file, words, message),) = found(path)
    assert (code, file, words) == ("F110", "small.forge", '"common"')
    assert message == "module `common` needs its parameter `max_new`"
    assert found(path, overrides=["common.max_new=3"]) == []
    assert found(path.with_name("common.forge")) == []  # by itself it is a module


def test_a_suppression_in_a_module_is_looked_at_there(write):
    loss = COMMON[COMMON.index("loss clipped") : COMMON.index("profile cpu")]
    unclamped = loss.replace("clipped", "raw").replace(
        "exp(clamp(logprob - behavior, -10.0, 10.0))",
        "exp(logprob - behavior)  # forge: allow[L405] bounded by the learning rate",
    )
    path = write(common=(("profile cpu", f"{unclamped}profile cpu"),))
    assert found(path) == []
    assert found(path.with_name("common.forge")) == []


@pytest.mark.parametrize("target", ["common", "small"])
def test_a_cycle_is_one_message(write, target):
    again = ('import "std/rl" as rl', f'import "{target}" as again\nimport "std/rl" as rl')
    path = write(common=(again,))
    assert [finding[0] for finding in found(path)] == ["F116"]


USES = [
    "service other : titan(common.policy) { procs = 1 }",
    'eval held { dataset = common.sums, source = jsonl("forgedsl:data/arithmetic_test.jsonl"), '
    "score = mine, every = 1, limit = 3 }",
    "loss other = common.clipped",
    "reward other = common.correct",
    "param other : int = common.max_new",
    "colocate = [common.trainer, common.generator]",
]


@pytest.mark.parametrize("text", ["", *USES])
def test_an_import_that_nothing_names_is_unused(write, tmp_path, text):
    path = write().with_name("own.forge")
    header = f'forge 1\nimport "common" as common\nreward mine = rl.exact\n{text}\n'
    flow = SMALL[SMALL.index("## Completions") :].replace("common.", "")
    own = COMMON.replace("forge 1\n", header).replace("profile cpu", "profile off")
    path.write_text(f"{own}\n{flow}", "utf-8")
    findings = found(path)
    assert {code for code, *_ in findings} <= {"F104", "D608", "N901"}, findings
    unused = [words for code, _, words, _ in findings if code == "F104" and "import" in words]
    assert unused == ([] if text else ['import "common" as common'])


NESTED = (
    ("common.clipped)", "common.rl.dap)", "common.rl.dap", "there is no loss `common.rl.dap`"),
    ("common.clipped)", "common.dapo)", "common.dapo", "there is no loss `common.dapo`"),
    ("common.clipped)", "common.rl)", "common.rl", "`common.rl` is a module, not a loss"),
    ("common.centred(", "common.rl.centre(", "centre", "`common.rl` has no member `centre`"),
)


@pytest.mark.parametrize(("old", "new", "words", "message"), NESTED)
def test_names_behind_two_imports_are_told_with_all_of_them(write, old, new, words, message):
    assert [(at, said) for _, _, at, said in found(write((old, new)))] == [(words, message)]


def test_a_standard_reward_is_named_through_a_module(write):
    path = write(("flow train", "reward own = common.rl.exact\nflow train"))
    assert program_of(path).rewards["own"].body.name == "exact"


def test_a_file_without_profiles_says_so(write):
    path = write()
    path.write_text(SMALL.replace('import "common" as common(max_new = 12)', ""), "utf-8")
    said = [d.help for d in lint_file(path, profile="x").diagnostics if "profile" in d.message]
    assert said == ["the file has no profiles"]
