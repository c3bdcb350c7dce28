"""A kind of service from outside the package, planned, rehearsed and run in a flow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
dataset sums { source = jsonl("sums.jsonl"), prompt = row.text, target = row.loud }
service trainer : titan(policy) {
  device    = cpu
  optimizer { lr = 1e-4 }
  batch     { seq_len = 64, rows = 4 }
}
service echo : upper(policy) { device = cpu, sampling { max_tokens = 8 } }
reward same = rl.exact
rubric grade { score = same, on_truncated = 0.0 }
flow train {
  prompt  = sums.draw(2)
  rollout = echo.sample(prompt, n = 2)
  score   = grade(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> echo
}
schedule sync { steps = 2 }
"""
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("stub", [("--stub",), ()], ids=["rehearsed", "run"])
def test_a_kind_of_service_from_outside_runs_a_flow(tmp_path: Path, stub: tuple[str, ...]) -> None:
    (tmp_path / "up.forge").write_text(PROGRAM)
    rows = [{"text": f"x + {i}", "loud": f"X + {i}"} for i in range(8)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = "import upper_kind; from forgedsl.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "run", *stub, "up.forge", "--run-dir", "run"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["reward_mean"] for row in found] == [None if stub else 1.0] * 2
