"""Whole runs on ranks that share rows and on stages of layers: the metrics of one rank, checkpoints
that go on on another shape, exports that load.

FORGE_DEEP=1 runs them (thirteen runs, half a minute each on two idle cores).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from safetensors.torch import load_file

from forgedsl.lower import job as spec

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(1800),
]
DATA = files("forgedsl") / "pipelines/data"
HEAD = """
forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
"""
SHOWN = """
## Pairs for policy and value head, demonstrations beside them, a reference, an eval by loss.
dataset pairs {
  source   = jsonl("forgedsl:data/arithmetic_pairs.jsonl")
  prompt   = chat(none, row.instruction)
  chosen   = row.chosen_response
  rejected = row.rejected_response
}
dataset demos { source = jsonl("shown.jsonl"), chat = row.messages }
service trainer : titan(value_head(policy)) {
  device    = cpu
  optimizer { lr = 2e-4, eps = 1e-3 }
  batch     { seq_len = 64, rows = 4 }
}
service other : titan(policy) { device = cpu }
flow train {
  pair  = pairs.pairs(16)
  two   = pairs.pairs(16)
  batch = replay(pair, ref = other.logprobs(pair))
  shown = demos.batches()
  trainer.step(batch, loss = rl.dpo(beta = 0.1), replay(two), loss = rl.bradley_terry,
               shown, loss = rl.sft)
}
schedule sync { steps = 4 }
eval held { dataset = demos, source = jsonl("held.jsonl"), loss = rl.sft, every = 2, limit = 64 }
"""
SAMPLED = """
## Adapters, groups of earlier steps, and answers scored by what the other program has exported.
model scored { source = local("scorer"), dtype = f32, context = 256 }
dataset sums { source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = row.question }
service trainer : titan(policy) {
  device    = cpu
  lora      { rank = 8 }
  optimizer { lr = 2e-3, eps = 1e-3 }
  batch     { seq_len = 64, rows = 16 }
}
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 16 } }
service other : titan(value_head(scored)) { device = cpu }
reward liked = other.score()
buffer good { groups = 64, max_age = 12 }
flow train {
  prompt  = sums.draw(16)
  rollout = generator.sample(prompt, n = 8)
  adv     = rl.group_norm(liked(rollout))
  good.put(rollout, adv = adv)
  old     = good.draw(8)
  trainer.step(merge(replay(rollout, adv = adv), replay(old, adv = old.adv)), loss = rl.dapo)
  sync trainer -> generator
}
schedule sync { steps = 3 }
"""
SHAPES = {
    "cp": ("trainer.procs=2", "trainer.parallel.cp=2", "other.procs=2", "other.parallel.pp=2"),
    "pp": ("trainer.procs=2", "trainer.parallel.pp=2", "other.procs=2", "other.parallel.cp=2"),
}
ADDITIONS = tolerance.of_shipped("tiny_math", length=64, tokens=64 * 64)
"""of a step of either program: at most 64 sequences of 64 tokens"""
ADAM = spec.Optimizer(lr=2e-4, eps=1e-3)
"""of SHOWN. Far above the rounding of gradients, so an update is no whole step where they vanish"""
RESUMED = ("run", "shown.forge", "schedule.steps=6", "--resume")


def forgec(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def rows(run: Path) -> list[dict[str, Any]]:
    """The numbers of each step, but not how long it took, nor in how many pairs a policy that is
    still its reference rates one answer higher: those are ties."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in row.items()
            if isinstance(value, float | int)
            and not name.partition("/")[0].endswith("_s")
            and not name.endswith(".accuracy")
        }
        for row in found
    ]


def agree(one: list[dict[str, Any]], several: list[dict[str, Any]]) -> None:
    assert [row["step"] for row in several] == [row["step"] for row in one]
    for a, b in zip(one, several, strict=True):
        # each step adds its own rounding to that of the weights before it
        near = tolerance.near(torch.float32, ADDITIONS, condition=a["step"])
        assert b == pytest.approx(a, **near)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.relative_to(folder)}/{name}": value
        for file in sorted(folder.rglob("*.safetensors"))
        for name, value in load_file(file).items()
    }


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both programs on one rank, the first also resumed."""
    folder = tmp_path_factory.mktemp("shapes")
    lines = (DATA / "arithmetic_demos.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "held.jsonl").write_text("".join(lines[:64]))
    (folder / "shown.jsonl").write_text("".join(lines[64:2000]))
    for name, text in (("shown", SHOWN), ("sampled", SAMPLED)):
        (folder / f"{name}.forge").write_text(HEAD + text)
    forgec(folder, "run", "shown.forge", "--run-dir", "shown")
    forgec(folder, "export", "shown", "--to", "scorer")
    shutil.copytree(folder / "shown", folder / "on")
    forgec(folder, *RESUMED, "on")
    forgec(folder, "run", "sampled.forge", "--run-dir", "sampled")
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_supervised_runs_agree_and_go_on_on_another_shape(one: Path, shape: str) -> None:
    run, there = one / f"shown-{shape}", one / f"on-{shape}"
    forgec(one, "run", "shown.forge", "--run-dir", run.name, *SHAPES[shape])
    agree(rows(one / "shown"), rows(run))
    forgec(one, "export", run.name, "--to", f"export-{shape}")
    expected, exported = weights(one / "scorer"), weights(one / f"export-{shape}")
    assert exported.keys() == expected.keys()
    close = tolerance.adam(
        torch.float32, ADDITIONS, updates=4, gradient=ADAM.max_norm, optimizer=ADAM
    )
    for name, value in expected.items():
        # a bias cancels in each pair: its gradient is rounding, of which Adam makes whole steps
        if name != "value_head/model.safetensors/bias":
            torch.testing.assert_close(exported[name], value, **close)
    forgec(one, *RESUMED, run.name, "--allow", "placement")
    agree(rows(one / "on"), rows(run))
    shutil.copytree(one / "shown", there)
    forgec(one, *RESUMED, there.name, "--allow", "placement", *SHAPES[shape])
    agree(rows(one / "on"), rows(there))


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_that_sample_begin_as_on_one_rank(one: Path, shape: str) -> None:
    """Later steps may sample otherwise, by what rounding makes of a near tie."""
    run = one / f"sampled-{shape}"
    forgec(one, "run", "sampled.forge", "--run-dir", run.name, *SHAPES[shape])
    found, expected = rows(run), rows(one / "sampled")
    agree(expected[:1], found[:1])
    assert [row["step"] for row in found] == [1, 2, 3]
    assert [row["tokens"] > 0 for row in found] == [True] * 3
