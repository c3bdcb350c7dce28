"""`forgec build --emit python`: the program states the job it was written from, hash included.

Every pipeline under every profile is written, imported and asked for its job; nothing is launched
(compiler_tests/runtime/test_program_run.py does that).
"""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forge_texts import GRPO, SFT, edited, loaded
from test_tenants_of_plans import BIG, SECOND
from test_tenants_of_plans import TEXT as SHARED

from forgedsl import api
from forgedsl.build.code import Call, Raw, quoted, statement
from forgedsl.build.python import modules
from forgedsl.lower.build import lower

ROOT = Path(__file__).parents[2]
PIPELINES = sorted((ROOT / "pipelines").glob("*.forge"))
PROFILES = {"grpo_math": ("none", "cpu", "gpu1", "gpu2", "gpu4", "cluster", "gpu_tiny")}
CASES = [(path, p) for path in PIPELINES for p in PROFILES.get(path.stem, ("none",))]


def written(lowered, folder):
    """The program in a folder, with the files it reads."""
    for name, text in modules(lowered.job).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for source, name in lowered.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    return folder


def stated(folder, monkeypatch):
    """The job that the program in a folder states."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "functions", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(folder / "main.py"))["program"].job()
    finally:
        sys.modules.pop("functions", None)


def lowered_file(path, profile):
    found = api.load(path, profile=profile)
    made = lower(
        found.checked, reporter=found.reporter, sources=found.sources, base_dir=path.parent
    )
    assert made is not None, [d.message for d in found.reporter]
    return made


@pytest.mark.parametrize(("path", "profile"), CASES, ids=lambda v: getattr(v, "stem", v))
def test_the_program_states_the_same_job(path, profile, tmp_path, monkeypatch):
    made = lowered_file(path, profile)
    job = stated(written(made, tmp_path), monkeypatch)
    assert job.model_dump() == made.job.model_dump()
    assert job.content_hash == made.job.content_hash


def test_services_of_one_engine_are_stated(tmp_path, monkeypatch):
    made, problems = edited(SHARED, *SECOND, folder=tmp_path, host=BIG)
    assert problems == []
    job = stated(written(made, tmp_path), monkeypatch)
    assert job.content_hash == made.job.content_hash
    assert job.samplers["second"].served_by == "generator"


def test_a_loss_in_python_is_stated(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\nclass Plain(nn.Module):\n"
        "    def forward(self, logprob, adv, seq_id, num_tokens):\n"
        "        return -(logprob * adv[seq_id]).sum() / num_tokens\n"
    )
    head = "loss grpo(logprob: diff [B, T] f32, adv: [B] f32) = mine.Plain()\nflow train"
    start, end = GRPO.index("loss grpo("), GRPO.index("flow train")
    text = (GRPO[:start] + head + GRPO[end + len("flow train") :]).replace("ref = ref_lp, ", "")
    text = text.replace("model policy", 'import python "mine.py" as mine\nmodel policy')
    made, problems = edited(text, folder=tmp_path)
    assert problems == []
    job = stated(written(made, tmp_path / "out"), monkeypatch)
    assert job.content_hash == made.job.content_hash
    assert job.losses["grpo"].python == "Plain of mine.py"
    command = [sys.executable, "-m", "ruff", "format", "--check", "--isolated"]
    done = subprocess.run(
        [*command, "--line-length", "100", "out/losses/grpo.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


RICH = GRPO.replace(
    "  batch   = replay(rollout, ref",
    "  kept    = rollout.keep(mixed(score))\n  batch   = replay(kept, ref",
).replace(
    'source = hf("openai/gsm8k", split = "train")',
    'source = mixture([hf("a/b"), jsonl("x.jsonl")], weights = [0.75, 0.25])',
)


@pytest.mark.parametrize("text", [RICH, SFT], ids=["mixture-keep", "sft"])
def test_other_sources_and_nodes(text, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "x.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    found = loaded(text)
    made = lower(found.checked, reporter=found.reporter, sources=found.sources, base_dir=here)
    assert made is not None, [d.message for d in found.reporter]
    job = stated(written(made, tmp_path / "out"), monkeypatch)
    assert job == made.job


def test_main_is_a_readable_program(golden):
    made = lowered_file(ROOT / "pipelines" / "grpo_math.forge", "cpu")
    golden("grpo_math/cpu/main.py.txt", modules(made.job)["main.py"])


@pytest.mark.parametrize("path", PIPELINES[:3] + PIPELINES[-1:], ids=lambda p: p.stem)
def test_programs_are_formatted(path, tmp_path):
    written(lowered_file(path, "none"), tmp_path)
    style = ["--isolated", "--line-length", "100"]
    checks = (["format", "--check"], ["check", "--select", "F,I", "main.py"])
    for words in checks:
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--exclude", "*_kernels.py", *style],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_a_program_does_not_read_a_job():
    made = lowered_file(PIPELINES[0], "none")
    assert "job.json" not in modules(made.job)["main.py"]


def test_calls_break_where_they_must():
    short = Call("f", [(None, 1), ("name", "x")])
    assert statement("a = ", short) == 'a = f(1, name="x")'
    long = Call("function", [(None, Raw("argument_" * 6)), ("other", ["item" * 20])])
    assert statement("a = ", long).splitlines() == [
        "a = function(",
        f"    {'argument_' * 6},",
        f'    other=["{"item" * 20}"],',
        ")",
    ]


@pytest.mark.parametrize("text", ["plain", "it's", 'say "x"', "both ' and \"", "a\\n\n\t", ""])
def test_strings_read_back(text):
    assert eval(quoted(text)) == text


def test_a_program_with_a_buffer_states_the_same_job(tmp_path, monkeypatch):
    text = (ROOT / "pipelines/rloo_math.forge").read_text()
    edits = [
        ("flow train {", "buffer good { groups = 64, max_age = 9 }\nflow train {"),
        ("  batch ", "  good.put(rollout, score = score)\n  old = good.draw(4)\n  batch "),
        ("step(batch, ", "step(merge(batch, replay(old, adv = rl.rloo(old.score))), "),
    ]
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = ROOT / "pipelines/rloo_math.forge"
    found = api.load_text(text, str(path), folder=path.parent)
    made = lower(
        found.checked, reporter=found.reporter, sources=found.sources, base_dir=path.parent
    )
    assert stated(written(made, tmp_path), monkeypatch) == made.job
