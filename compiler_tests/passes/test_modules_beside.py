"""Modules beside a Python file of the program: which they are, in the job, and in a run."""

import subprocess
import sys
from pathlib import Path

import pytest
from forge_texts import changed

from forgedsl.lower.modules import modules_beside

ROOT = Path(__file__).parents[2]
FILES = {
    "rewards.py": """
import os
import json as j
import inner.deep
from helper import same

def right(response: str, target: str) -> float:
    from late import number
    return number * same(response, target) + inner.deep.NOTHING
""",
    "helper.py": "import again\n\ndef same(a, b):\n    return float(a == b) + again.NOTHING\n",
    "again.py": "import os\nNOTHING = 0.0\n",
    "late.py": "from inner import deep\nnumber = 1.0 + deep.NOTHING\n",
    "inner/__init__.py": "from .other import NOTHING\n",
    "inner/deep.py": "from .other import NOTHING as NOTHING\n",
    "inner/other.py": "NOTHING = 0.0\nfrom . import deep\n",
    "json.py": "raise SystemExit('the standard library comes first')\n",
    "unused.py": "",
    "torch_missing.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_are_followed_to_the_files_beside(folder: Path) -> None:
    found = modules_beside(folder / "rewards.py")
    assert {name: path.relative_to(folder).as_posix() for name, path in found.items()} == {
        "helper": "helper.py", "again": "again.py", "late": "late.py",
        "inner": "inner/__init__.py", "inner.deep": "inner/deep.py",
        "inner.other": "inner/other.py",
    }  # fmt: skip


def test_a_file_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import (\n")
    assert [*modules_beside(tmp_path / "a.py")] == ["b"]
    assert modules_beside(tmp_path / "c.py") == {}


def made(folder: Path) -> Path:
    """Compile grpo_math with the reward of the folder; return the folder of the job."""
    text = (ROOT / "pipelines" / "grpo_math.forge").read_text()
    text = changed(
        text,
        ('import "std/rl" as rl ', 'import python "rewards.py" as mine\nimport "std/rl" as rl '),
        ("reward correct  = rl.math_equal(tolerance = 1e-6)", "reward correct = mine.right"),
    )
    for name in ("data", "models"):
        (folder / name).symlink_to(ROOT / "pipelines" / name)
    (folder / "p.forge").write_text(text)
    out = folder / "out"
    command = [sys.executable, "-m", "forgedsl.cli.main", "build", str(folder / "p.forge"), "-o"]
    subprocess.run([*command, str(out), "--host", "cpu"], check=True, capture_output=True)
    return out


def test_they_are_files_of_the_job_and_a_run_imports_them(folder: Path) -> None:
    out = made(folder)
    for name in FILES:  # the job needs nothing beside it
        (folder / name).unlink()
    code = """
from pathlib import Path
from forgedsl.lower.job import Job
from forgedsl_runtime.rewards.loading import _python_function
import sys

out = Path(sys.argv[1])
reward = Job.model_validate_json((out / "job.json").read_text()).rewards["correct"]
print(sorted(reward.modules), _python_function(reward, out)("4", "4"))
"""
    run = [sys.executable, "-c", code, str(out)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = ["again", "helper", "inner", "inner.deep", "inner.other", "late"]
    assert done.stdout == f"{names} 1.0\n"
    with (out / "inputs" / "again.py").open("a") as file:
        file.write("NOTHING = 1.0\n")
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "inputs/again.py is not the file the job was built with" in done.stderr


def test_a_name_that_is_taken_in_the_process_is_refused(folder: Path) -> None:
    from forgedsl.errors import LaunchError
    from forgedsl_runtime.modules import JobModules

    (folder / "pytest.py").write_text("")
    with pytest.raises(LaunchError, match=r"`pytest` beside .* is hidden by .*another name"):
        JobModules().add({"pytest": folder / "pytest.py"})
