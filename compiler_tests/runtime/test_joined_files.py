"""Phi-3's files join queries, keys and values, and gate and up: there and back, and a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forgedsl.families.base import Dims
from forgedsl_runtime.services.titan.upstream.families import phi3

FLAGSHIP = Path(__file__).parents[2] / "pipelines/grpo_math.forge"
DIMS = Dims(layers=2, hidden=8, heads=4, kv_heads=2, head_dim=3, ffn=5, vocab=7, context=16)
PHI = (
    "policy.source=random(seed=1)",
    'policy.tokenizer=local("models/tiny_math")',
    "policy.arch=phi3(layers=2,hidden=64,heads=2,kv_heads=1,head_dim=32,ffn=96,vocab=64)",
)
"""settings that make the flagship's policy a small Phi-3"""


def weights() -> dict[str, torch.Tensor]:
    """The parts of two layers, and tensors that nothing joins."""
    rows = {"q": 12, "k": 6, "v": 6}
    found = {"model.embed_tokens.weight": torch.randn(7, 8), "lm_head.weight": torch.randn(7, 8)}
    for layer in range(2):
        place = f"model.layers.{layer}"
        for letter, count in rows.items():
            found[f"{place}.self_attn.{letter}_proj.weight"] = torch.randn(count, 8)
        for name in ("gate", "up"):
            found[f"{place}.mlp.{name}_proj.weight"] = torch.randn(5, 8)
        found[f"{place}.mlp.down_proj.weight"] = torch.randn(8, 5)
    return found


def test_what_is_joined_is_split_into_the_same_parts() -> None:
    parts = weights()
    joined = dict(phi3.join(parts.items()))
    assert sorted(name for name in joined if "layers.0" in name) == [
        "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.self_attn.qkv_proj.weight",
    ]  # fmt: skip
    assert joined["model.layers.1.self_attn.qkv_proj.weight"].shape == (24, 8)
    again = dict(phi3.split(joined.items(), DIMS))
    assert again.keys() == parts.keys()
    assert all(torch.equal(again[name], value) for name, value in parts.items())


def test_the_order_of_the_parts_does_not_matter() -> None:
    parts = weights()
    backwards = dict(phi3.join(reversed(parts.items())))
    joined = dict(phi3.join(parts.items()))
    assert all(torch.equal(backwards[name], value) for name, value in joined.items())


@pytest.mark.deep
@pytest.mark.timeout(420)
def test_two_ranks_train_publish_and_export(tmp_path: Path) -> None:
    """Shards are loaded from a joined file, sent as parts, and exported joined."""
    words = ["--profile", "cpu", *PHI, "prompts=4", "held_out.every=100", "schedule.steps=2"]
    words += ["trainer.procs=2", "trainer.parallel.dp_shard=2", "reference.procs=2"]
    forgec = [sys.executable, "-m", "forgedsl.cli.main"]
    for command in (["run", str(FLAGSHIP), *words, "--run-dir", "run"], ["export", "run"]):
        done = subprocess.run(
            [*forgec, *command], cwd=tmp_path, capture_output=True, text=True, timeout=400,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    events = map(json.loads, (tmp_path / "run/events.jsonl").read_text("utf-8").splitlines())
    synced = [event for event in events if event["kind"] == "sync.end"]
    assert [event["version"] for event in synced] == [0, 1, 2]
    assert all(event["proved"] for event in synced)
    exported = load_file(tmp_path / "run/exports/step-2/model.safetensors")
    names = {name for name in exported if "layers.1.self_attn" in name}
    assert names == {f"model.layers.1.self_attn.{each}_proj.weight" for each in ("qkv", "o")}
