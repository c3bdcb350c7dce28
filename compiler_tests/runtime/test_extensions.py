"""Operations and kinds of services from outside: from lint to a resumed run, each one package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOYS = Path(__file__).parents[1] / "outside"
PROGRAM = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
dataset sums { source = jsonl("sums.jsonl"), prompt = row.text, target = row.loud }
service teacher : table(policy) { device = cpu }
service echo : upper(policy) { device = cpu, sampling { max_tokens = 8 } }
reward same = rl.exact
rubric grade { score = same, on_truncated = 0.0 }
flow train {
  prompt  = sums.draw(2)
  rollout = echo.sample(prompt, n = 2)
  loud    = louder(rollout, marks = 2)
  score   = grade(loud, prompt.target)
  batch   = replay(loud, adv = rl.group_norm(score))
  teacher.step(batch, loss = rl.dapo)
  sync teacher -> echo
}
schedule sync { steps = 2 }
checkpoint { every = 1 }
"""
pytestmark = pytest.mark.timeout(300)


def forgec(folder: Path, *args: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", *args],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def project(folder: Path, program: str = PROGRAM) -> Path:
    """A folder with the three toys and a program that uses them."""
    for toy in ("louder", "table", "upper"):
        shutil.copytree(TOYS / toy, folder / toy, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_text(
        '[tool.forgec]\nextensions = ["louder", "table", "upper"]\n'
    )
    rows = [{"text": f"x + {i}", "loud": f"X + {i}!!"} for i in range(8)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "up.forge").write_text(program)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A project whose run has ended."""
    folder = project(tmp_path_factory.mktemp("project"))
    forgec(folder, "run", "up.forge", "--run-dir", "run")
    return folder


def metrics(folder: Path) -> list[dict]:
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_it_is_checked_planned_drawn_and_simulated(tmp_path):
    project(tmp_path)
    assert "no findings" in forgec(tmp_path, "lint", "up.forge")
    plan = forgec(tmp_path, "plan", "up.forge")
    assert "step     teacher" in plan
    assert "rollout > loud > score" in plan
    assert "louder(marks = 2)" in forgec(tmp_path, "graph", "up.forge")
    assert "tokens/s trained" in forgec(tmp_path, "sim", "up.forge")


def test_mistakes_in_its_statements_are_diagnostics(tmp_path):
    project(tmp_path, PROGRAM.replace("louder(rollout, marks = 2)", "louder(score, mark = 2)"))
    found = forgec(tmp_path, "lint", "up.forge", code=1)
    assert "error[F114]: `louder` has no parameter `mark`" in found


def test_it_is_rehearsed_without_code_of_its_own(tmp_path):
    project(tmp_path)
    forgec(tmp_path, "run", "--stub", "up.forge", "--run-dir", "run")
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2]


def test_it_runs(run):
    assert [row["reward_mean"] for row in metrics(run)[:2]] == [1.0, 1.0]
    counts = json.loads((run / "run/checkpoints/step-2/table.json").read_text())
    assert counts["version"] == 2


@pytest.mark.full
def test_a_run_goes_on_from_its_checkpoint_with_the_files_of_its_folder(run, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run / "run", moved)
    whole = (moved / "checkpoints/step-2/table.json").read_text()
    shutil.rmtree(moved / "checkpoints/step-2")  # as if it had been killed after its first step
    forgec(tmp_path, "run", "--resume", "moved")
    assert (moved / "checkpoints/step-2/table.json").read_text() == whole


def test_a_report_is_written_where_the_project_is_not(run, tmp_path):
    shutil.copytree(run / "run", tmp_path / "run")
    forgec(tmp_path, "report", "run")
    assert "loud" in (tmp_path / "run/report.html").read_text()


def test_files_that_changed_are_not_run(run, tmp_path):
    shutil.copytree(run / "run", tmp_path / "run")
    file = tmp_path / "run/inputs/extensions/louder/runtime.py"
    file.write_text(file.read_text() + "\n")
    shutil.rmtree(tmp_path / "run/checkpoints/step-2")
    found = forgec(tmp_path, "run", "--resume", "run", code=4)
    assert "louder/runtime.py has changed since the job was compiled" in found


def test_programs_in_python_have_it(tmp_path):
    project(tmp_path)
    forgec(tmp_path, "build", "up.forge", "-o", "built", "--emit", "python,job")
    code = (
        "import json, sys; sys.path.insert(0, 'built'); import main; job = main.program.job(); "
        "print(job.content_hash == json.load(open('built/job.json'))['content_hash'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True", done.stderr


def test_it_is_in_the_reference(tmp_path):
    project(tmp_path)
    assert "the answers with so many exclamation marks" in forgec(tmp_path, "doc", "louder")
    assert "answers in capitals" in forgec(tmp_path, "doc", "upper")
    assert "`batch.rows`" in forgec(tmp_path, "doc", "table")


def test_a_package_that_is_not_there_is_named(tmp_path):
    project(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.forgec]\nextensions = ["lauder"]\n')
    found = forgec(tmp_path, "lint", "up.forge", code=2)
    assert found.startswith("forgec: extension `lauder` cannot be imported: ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("raise ValueError('boom')\n", "fails while it is imported, at {}:{}: ValueError: boom"),
        ("def (\n", "fails while it is imported, at {}:{}: SyntaxError: invalid syntax"),
        (
            "OPERATIONS = (3,)\n",
            "`OPERATIONS` of `louder` has 3, which is not of class Operation",
        ),
        ("KINDS = Louder\n", "which is not of class ServiceKind"),
    ],
)
def test_mistakes_in_a_package_are_told_at_their_place(tmp_path, more, said):
    file = project(tmp_path) / "louder/__init__.py"
    file.write_text(file.read_text() + more)
    lines = len(file.read_text().splitlines())
    assert said.format(file, lines) in forgec(tmp_path, "lint", "up.forge", code=2)


def test_a_parameter_that_must_be_given_is_asked_for(tmp_path):
    project(tmp_path, PROGRAM.replace("louder(rollout, marks = 2)", "louder(rollout)"))
    assert "`louder` needs its marks" in forgec(tmp_path, "lint", "up.forge", code=1)


def test_other_keys_of_the_section_are_refused(tmp_path):
    project(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.forgec]\nextension = ["louder"]\n')
    found = forgec(tmp_path, "lint", "up.forge", code=2)
    assert "[tool.forgec] has no `extension`; it has extensions and lint" in found


def test_a_list_of_names_is_asked_for(tmp_path):
    project(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.forgec]\nextensions = "louder"\n')
    found = forgec(tmp_path, "plan", "up.forge", code=2)
    assert "`extensions` of [tool.forgec] is a list of package names" in found
