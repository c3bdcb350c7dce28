"""The files in pipelines/ whose agents are programs of other projects train for three steps, with
these projects as they come from the package index. FORGE_DEEP=1 runs them, two to five minutes each
on two cores; frameworks/install.py installs the projects, each in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "frameworks"))
from install import LINE, folder, is_installed
from serving import serving

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(900),
]
PIPELINES = Path(__file__).parents[2] / "pipelines"


def python(name: str) -> str:
    """Return the interpreter of a project's environment."""
    if not is_installed(name):
        pytest.skip(f"no framework {name}: {LINE} {name}")
    return str(folder(name) / "bin/python")


def trains(where: Path, name: str, *words: str) -> None:
    """Run a file for three steps; all its trajectories get a reward."""
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "run", str(PIPELINES / f"{name}.forge"),
         "--run-dir", "run", "schedule.steps=3", "held_out.limit=4", "prompts=2", *words],
        cwd=where, capture_output=True, text=True, timeout=880, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert " failed:" not in said
    steps = [json.loads(line) for line in (where / "run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["scores_failed"] == 0 for step in steps)
    assert all(0.0 <= step["reward_mean"] <= 1.0 for step in steps)
    assert steps[0]["loss/ratio"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", ["verifiers", "inspect", "harbor"])
def test_a_program_of_another_project_trains_three_steps(name: str, tmp_path: Path) -> None:
    trains(tmp_path, name, f"interpreter={python(name)}")


def nemo_gym(*words: str) -> AbstractContextManager[str]:
    """Run a resources server of NeMo-Gym; give its address."""
    script, interpreter = str(PIPELINES / "environments/nemo_gym_server.py"), python("nemo-gym")
    return serving(
        lambda port: [interpreter, script, *words, "--port", str(port)], page="openapi.json"
    )


def test_a_resources_server_of_nemo_gym_trains_three_steps(tmp_path: Path) -> None:
    with nemo_gym("equivalence_rule") as url:
        trains(tmp_path, "nemo_gym", f'url="{url}"')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["equivalance_rule"], "no server equivalance_rule; did you mean equivalence_rule?"),
        (["equivalence_rule", "grading=exact"], "did you mean grading_rule?"),
        (["equivalence_rule", "grading_rule=exat"], "'seq_match', 'weighted_seq_match' or 'exact'"),
    ],
)
def test_wrong_names_of_a_server_of_nemo_gym_are_told(words: list[str], said: str) -> None:
    script = str(PIPELINES / "environments/nemo_gym_server.py")
    done = subprocess.run(
        [python("nemo-gym"), script, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (1, True, False)
