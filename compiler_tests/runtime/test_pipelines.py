"""Every shipped pipeline: lints clean, plans under each of its profiles, and trains on CPU.

The two that share least with grpo_math run here for a few steps; FORGE_DEEP runs all, 20 steps.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from forgedsl.api import load
from forgedsl.cli.host import host_of
from forgedsl.lint.engine import lint_file
from forgedsl.lower.build import lower
from forgedsl.plan.plan import advice

PIPELINES = Path(__file__).parents[2] / "pipelines"
NAMES = (
    "arena", "chain_sum", "cispo_math", "code_sft", "curriculum_math", "dapo_code", "dapo_math",
    "desk", "distill_math", "dpo_math", "grpo_math", "gspo_math", "guess_agent", "guess_math",
    "harbor", "inspect", "lake", "mixture_math", "nemo_gym", "openenv", "ppo_critic",
    "reinforce_math", "replay_math", "reward_math", "rloo_math", "sapo_math", "sft_math",
    "skills_sft", "smollm_dpo", "smollm_math", "smollm_sft", "teacher_sft", "verifiers", "writing",
)  # fmt: skip
PROFILES = {
    "arena": ("none",),
    "code_sft": ("none",),
    "curriculum_math": ("none",),
    "dapo_code": ("none", "gpu1", "cpu"),
    "desk": ("none",),
    "grpo_math": ("none", "cpu", "gpu1", "gpu2", "gpu4", "gpu_tiny", "cluster"),
    "guess_agent": ("none",),
    "guess_math": ("none",),
    "chain_sum": ("none",),
    "harbor": ("none",),
    "inspect": ("none",),
    "lake": ("none",),
    "mixture_math": ("none",),
    "nemo_gym": ("none",),
    "openenv": ("none",),
    "replay_math": ("none",),
    "sft_math": ("none",),
    "skills_sft": ("none",),
    "smollm_dpo": ("gpu1", "gpu2"),  # cpu where the model is: test_real_model
    "smollm_math": ("none", "gpu1"),
    "smollm_sft": ("none", "gpu1"),
    "teacher_sft": ("none",),
    "verifiers": ("none",),
    "writing": ("none",),
}
OTHERS = (
    "arena",
    "harbor",
    "inspect",
    "nemo_gym",
    "openenv",
    "verifiers",
)  # trained in test_environments_of_others, with their packages
SHOWN = ("harbor", "inspect", "nemo_gym", "verifiers")  # a process a trajectory: few steps
DEEP = bool(os.environ.get("FORGE_DEEP"))
RUNS = ["dpo_math"]
if DEEP:
    RUNS = [name for name in NAMES if not name.startswith("smollm") and name not in OTHERS]
ONLY_CPU = (
    "arena", "chain_sum", "code_sft", "curriculum_math", "desk", "guess_agent", "guess_math",
    "harbor", "inspect", "lake", "mixture_math", "nemo_gym", "openenv", "replay_math", "sft_math",
    "skills_sft", "teacher_sft", "verifiers", "writing",
)  # fmt: skip
STEPS = 20 if DEEP else 3
PACKAGES = {"lake": "gymnasium", "chain_sum": "reasoning_gym"}


def _needs_package(name: str) -> None:
    if find_spec(PACKAGES.get(name, "forgedsl")) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")


def test_the_list_is_complete() -> None:
    assert tuple(sorted(path.stem for path in PIPELINES.glob("*.forge"))) == NAMES


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in ("dapo_code", *SHOWN) and not n.startswith("smollm")],
)
def test_header_says_how_much_it_learns_on_a_cpu(name: str) -> None:
    """What benchmarks/learning.py measures."""
    lines = (PIPELINES / f"{name}.forge").read_text("utf-8").splitlines()
    header = " ".join(line.removeprefix("## ") for line in lines if line.startswith("## "))
    assert re.search(r"\d+ steps (raise|lower) [\w/]+ by \d", header)


@pytest.mark.parametrize("name", NAMES)
def test_lint_finds_nothing(name: str) -> None:
    _needs_package(name)
    found = lint_file(PIPELINES / f"{name}.forge").diagnostics
    assert [f"{d.code} {d.message}" for d in found if d.severity in ("error", "warning")] == []


@pytest.mark.parametrize(
    ("name", "profile"), [(n, p) for n in NAMES for p in PROFILES.get(n, ("none", "cpu"))]
)
def test_every_profile_plans(name: str, profile: str) -> None:
    _needs_package(name)
    path = PIPELINES / f"{name}.forge"
    loaded = load(path, profile=profile)
    made = lower(
        loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=PIPELINES
    )
    problems = [d for d in loaded.reporter if d.severity in ("error", "warning")]
    assert problems == []
    assert made is not None
    devices = {service.mesh.device for service in made.job.services.values()}
    assert devices == {"cpu"} if profile == "cpu" or name in ONLY_CPU else "gpu" in devices


@pytest.mark.cover
@pytest.mark.parametrize("host", ["1xH200", "2xH200", "4xH200", "8xH200", "4x8xH200"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONLY_CPU])
def test_no_step_waits_for_what_could_be_elsewhere(name: str, host: str) -> None:
    where, path = host_of(host, "plan"), PIPELINES / f"{name}.forge"
    loaded = load(path, host=where)
    made = lower(
        loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=PIPELINES,
        host=where,
    )  # fmt: skip
    assert made is not None, list(loaded.reporter)
    told = [*loaded.reporter, *advice(loaded.checked, made.graph, made.plan)]
    assert [d for d in told if d.severity in ("error", "warning")] == []
    assert {mesh.device for mesh in made.plan.meshes} == {"gpu"}
    cost, graph = made.plan.cost, made.graph
    learning = {graph.trainer, *(str(sync.settings["target"]) for sync in graph.syncs)}
    awaited = cost.bottleneck
    assert awaited is not None
    # where a teacher has to share one of two GPUs, the plan's choice of them is the faster one
    nowhere = {("distill_math", "2xH200"): 0.66}
    assert cost.busy(awaited.service) < nowhere.get((name, host), 0.6) or (
        awaited.service in learning
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RUNS)
def test_it_trains_on_a_cpu(name: str, tmp_path: Path) -> None:
    file = PIPELINES / f"{name}.forge"
    command = ["run", str(file), f"schedule.steps={STEPS}", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in rows)
    if name == "dpo_math":  # policy and reference begin as one model
        assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)
        assert rows[-1]["loss"] < rows[0]["loss"]
    if name == "desk":  # calls are read in what the model wrote, and their results go back to it
        assert all(0 < row["reward/right"] < 1 < 10 * row["reward/lookups"] for row in rows)
    if name == "distill_math":
        # the teacher is sure of what the student is not: 1.0 to 1.5 nats a token at first
        assert 0.9 < rows[0]["loss/reverse_kl"] < 1.6
        assert all(0.1 < row["loss/reverse_kl"] < 1.6 for row in rows)
