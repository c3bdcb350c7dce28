"""`forgec build`, then `python main.py`: trains as `forgec run` does.

In synchronous mode with one seed the weights after three steps are equal, byte for byte. Errors
name the .forge line, in the program itself and in the functions that a run calls.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)

PIPELINE = """forge 1
import "std/rl" as rl
import python "my_rewards.py" as mine

model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("sums.jsonl")
  prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, gpus = 0, optimizer.lr = 1e-3, batch { seq_len = 64, rows = 16 }
}
service generator : vllm(policy) { device = cpu, gpus = 0, sampling { max_tokens = 8 } }

reward correct = rl.math_equal(tolerance = 1e-6)
reward short(prompt: str, response: str, target: str) -> f32 = mine.short { timeout = 5s }
rubric both { score = 0.8 * correct + 0.2 * short, on_truncated = 0.0, on_error = drop }

loss pg(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  minimize token_mean(-exp(clamp(logprob - behavior, -10.0, 10.0)) * adv, mask)
}
flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  batch   = replay(rollout, adv = rl.mean_baseline(both(rollout, prompt.target)))
  trainer.step(batch, loss = pg)
  sync trainer -> generator
}
schedule sync { steps = 3 }
checkpoint { export = hf("final") }
"""
REWARD = "def short(prompt, response, target):\n    return 1.0 / (1 + len(response))\n"


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline with files of its own, and the program it compiles to in out/."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "own.forge").write_text(PIPELINE)
    (folder / "my_rewards.py").write_text(REWARD)
    shutil.copyfile(ROOT / "pipelines/data/arithmetic.jsonl", folder / "sums.jsonl")
    words = ("-m", "forgedsl.cli.main", "build", "own.forge", "-o", "out", "--emit", "python")
    done = python(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.full
def test_equal_weights_after_three_steps(project: Path) -> None:
    run = python(
        "-m", "forgedsl.cli.main", "run", "own.forge", "--run-dir", "a", "--quiet", cwd=project
    )
    assert run.returncode == 0, run.stdout + run.stderr
    program = python("main.py", "--run-dir", "../b", "--quiet", cwd=project / "out")
    assert program.returncode == 0, program.stdout + program.stderr
    assert "own finished: 3 steps" in program.stdout
    files = [(project / name / "final" / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]
    start = (ROOT / "pipelines/models/tiny_math/model.safetensors").read_bytes()
    assert files[0] != start
    jobs = [json.loads((project / name / "job.json").read_text()) for name in "ab"]
    assert jobs[0] == jobs[1]


def test_the_program_is_all_it_takes(project: Path) -> None:
    """It reads no job: what it copies is what the pipeline reads."""
    found = {p.relative_to(project / "out").as_posix() for p in (project / "out").rglob("*.*")}
    found = {name for name in found if "__pycache__" not in name}
    assert found == {
        "main.py", "functions.py", "losses/pg.py", "losses/pg_kernels.py", "losses/pg.tree",
        "inputs/my_rewards.py", "inputs/sums.jsonl",
    }  # fmt: skip


def test_help_says_how_to_run_it(project: Path) -> None:
    done = python("main.py", "--help", cwd=project / "out")
    assert done.returncode == 0
    assert "--run-dir" in done.stdout
    assert "--steps" in done.stdout


def test_a_mistake_in_the_program_names_the_forge_line(project: Path) -> None:
    text = (project / "out/main.py").read_text()
    node = '"rollout",\n    prompt,\n'
    assert text.count(node) == 1
    shutil.copytree(project / "out", project / "broken")
    (project / "broken/main.py").write_text(text.replace(node, '"rollout",\n    promt,\n'))
    done = python("main.py", cwd=project / "broken")
    assert done.returncode == 1
    assert "NameError: name 'promt' is not defined" in done.stderr
    assert done.stderr.rstrip().endswith("from own.forge:25:3")


def test_an_edited_reward_is_a_program_of_its_own(project: Path) -> None:
    """The hash is that of the file as it is, so that the copy may be changed."""
    shutil.copytree(project / "out", project / "edited")
    (project / "edited/inputs/my_rewards.py").write_text(REWARD + "# a comment\n")
    script = "import main; print(main.program.job().rewards['short'].sha256)"
    hashes = [python("-c", script, cwd=project / name).stdout for name in ("out", "edited")]
    assert all(len(text.strip()) == 64 for text in hashes)
    assert hashes[0] != hashes[1]
