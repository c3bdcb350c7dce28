"""A run that is resumed after a package of a reward and of an environment has another version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
FILES = {
    "game.py": """
import shop_client
from forgedsl.environment import Environment, Step


class Once(Environment):
    parts = ("seen",)

    def step(self, turn):
        return Step(rewards={"seen": float(shop_client.PRICE)}, done=True)
""",
    "grading.py": """
import shop_client


def right(response, target):
    return float(shop_client.PRICE == 1 and str(target) in response)
""",
    "t.forge": """forge 1
import "std/rl" as rl
import python "game.py" as game
import python "grading.py" as grading

model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) { device = cpu, batch { seq_len = 64, rows = 64 } }
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 16 } }
environment once = game.Once
reward right = grading.right
rubric grade { score = right, on_truncated = 0.0 }
flow train {
  prompt  = sums.draw(8)
  rollout = generator.play(prompt, env = once, n = 4, max_turns = 1)
  score   = grade(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 2, max_policy_age = 1 }
checkpoint { every = 1 }
""",
}


def installed(site: Path, version: str) -> None:
    """Install `shop-sdk`, the package of the module `shop_client`, in a folder of packages."""
    shutil.rmtree(site, ignore_errors=True)
    (site / "shop_client").mkdir(parents=True)
    (site / "shop_client/__init__.py").write_text("PRICE = 1\n")
    info = site / f"shop_sdk-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shop-sdk\nVersion: {version}\n")
    (info / "RECORD").write_text("shop_client/__init__.py,,\n")


def test_a_resumed_run_tells_versions_that_are_not_those_of_its_beginning(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    site, run = tmp_path / "site", tmp_path / "run"

    def forgec(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "forgedsl.cli.main", "run", *words],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    installed(site, "1.2")
    first = forgec("t.forge", "--run-dir", "run")
    job = json.loads((run / "job.json").read_text("utf-8"))
    assert job["rewards"]["right"]["packages"] == {"shop-sdk": "1.2"}
    assert job["environments"]["once"]["packages"] == {"shop-sdk": "1.2"}
    assert "shop-sdk" not in first

    same = forgec("--resume", "run", "schedule.steps=3", "t.forge")
    assert "shop-sdk" not in same

    installed(site, "1.3")
    told = forgec("--resume", "run", "schedule.steps=4", "t.forge")
    for owner in ("rewards.right", "environments.once"):
        assert f'{owner}.packages.shop-sdk: "1.2" -> "1.3"' in told
    changes = [json.loads(line) for line in (run / "changes.jsonl").read_text().splitlines()]
    written = {c["setting"]: (c["before"], c["after"]) for c in changes[-1]["changes"]}
    assert {name: each for name, each in written.items() if "packages" in name} == dict.fromkeys(
        ("rewards.right.packages.shop-sdk", "environments.once.packages.shop-sdk"), ("1.2", "1.3")
    )
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
