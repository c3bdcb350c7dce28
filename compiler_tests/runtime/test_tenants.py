"""An engine serves other services beside the policy: their answers never change, the policy's
adapter is swapped as before, and a restarted engine serves them again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_family_logits import printed
from tolerance import near, of_shipped

from forgedsl.adapters import A, B
from forgedsl.lower import job as spec
from forgedsl.shipped import shipped_root
from forgedsl_runtime.adapters import merged_folder
from forgedsl_runtime.weight_folders import write_adapter

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]
MODEL = shipped_root() / "models/tiny_math"
ROUNDING = near(torch.float32, of_shipped("tiny_math", length=64), size=10.0)["abs"]
LORA = spec.Lora(rank=4, alpha=8.0)


def make_adapter(folder: Path, seed: int = 9) -> None:
    """Write an adapter of the shipped model, with a scale of 2."""
    from family_adapters import drawn

    halves = drawn(load_file(MODEL / "model.safetensors"), seed, size=0.15)
    layers = {name.removesuffix(A): (value, halves[name.removesuffix(A) + B])
              for name, value in halves.items() if name.endswith(A)}  # fmt: skip
    write_adapter(layers, folder, base="tiny_math", lora=LORA)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What tenants answer in one engine, and in engines of their own."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("tenants")
    make_adapter(folder / "adapter")
    merged = merged_folder(MODEL, folder / "adapter", folder / "merged", wide=True, origin="")
    together = printed("tenants_of_engine.py", "together", str(MODEL), str(folder / "adapter"))
    alone = {
        "base": printed("tenants_of_engine.py", "base", str(MODEL)),
        "adapted": printed("tenants_of_engine.py", "adapted", str(merged)),
    }
    return together | {"alone": alone}


def of_tenants(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: answer for name, answer in answers.items() if not name.startswith(" ")}


@pytest.mark.parametrize("tenant", ["base", "adapted"])
def test_a_tenant_answers_as_an_engine_of_its_own(found: Any, tenant: str) -> None:
    """An adapter is added, and not merged, so that log-probs are rounded otherwise."""
    for name, (tokens, logprobs) in found["alone"][tenant].items():
        ours = found["at first"][name]
        assert ours[0] == tokens
        assert ours[1] == pytest.approx(logprobs, abs=ROUNDING)


def test_tenants_differ(found: Any) -> None:
    answers = found["at first"]
    assert all(answers[f"base {i}"] != answers[f"adapted {i}"] for i in range(6))


def test_answers_are_the_same_after_three_updates_of_the_policy(found: Any) -> None:
    assert found["after three"] == found["at first"]
    assert len(found["at first"]) == 12


def test_prompts_of_others_in_the_cache_change_nothing(found: Any) -> None:
    """All have the same prompts, each of which fills a block."""
    assert of_tenants(found["with the policy"]).keys() == found["at first"].keys()
    for name, (tokens, logprobs) in found["at first"].items():
        ours = found["with the policy"][name]
        assert ours[0] == tokens
        assert ours[1] == pytest.approx(logprobs, abs=ROUNDING)


def test_the_policy_never_reads_keys_of_an_older_adapter(found: Any) -> None:
    assert max(found["policy apart"]) < ROUNDING


def test_a_swap_recomputes_contexts_of_the_policy_alone(found: Any) -> None:
    again, kept = found["crossing False"], found["crossing True"]
    running = [name for name in again["before"] if name.startswith(" ")]
    assert len(again["dropped"]) == len(running) > 0
    assert all(name.startswith(" ") for name in again["dropped"])
    assert not kept["dropped"]
    assert again["apart"] < ROUNDING
    assert kept["apart"] > 0.1
    for crossed in (again, kept):
        answers = of_tenants(crossed["answers"])
        assert answers.keys() == found["at first"].keys()
        for name, (tokens, logprobs) in answers.items():
            assert tokens == found["at first"][name][0]
            assert logprobs == pytest.approx(found["at first"][name][1], abs=ROUNDING)


def test_the_adapter_of_a_tenant_is_proved(found: Any) -> None:
    assert found["tensors"] == 42
    assert found["faults"] == found["faults at last"] == {"adapted": []}
    assert found["faulty"] == {
        "adapted": ["model.layers.1.mlp.down_proj.lora_B.weight has other values in the engine "
                    "(model.layers.1.mlp.down_proj)"]
    }  # fmt: skip


PROGRAM = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
model strict {
  source = local("forgedsl:models/tiny_math"), adapter = local("adapter"), dtype = f32, context = 64
}
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question, target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, lora { rank = 4 }, optimizer { lr = 5e-3 }, batch { seq_len = 64, rows = 4 }
}
service generator : vllm(policy) { device = cpu, replicas = 2, sampling { max_tokens = 8 } }
service base : vllm(policy) { served_by = generator }
service judge : vllm(strict) { served_by = generator }
reward plain = base.score(prompt = "{prompt}{response}+1=", scale = [0, 9]) { on_error = 0.0 }
reward hard = judge.score(prompt = "{prompt}{response}+1=", scale = [0, 9]) { on_error = 0.0 }
rubric grade { score = plain + hard }
flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  score   = grade(rollout)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator { weights = adapter }
}
checkpoint { every = 2 }
schedule async { steps = 24, max_policy_age = 1 }
"""


def grades(folder: Path, texts: list[str]) -> list[float]:
    """What the weights in a folder give as the grade of each text, on 0 to 1; 0 for no grade."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    ids = [tokenizer.convert_tokens_to_ids(str(grade)) for grade in range(10)]
    found = []
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            mass = model(tokens).logits[0, -1].softmax(-1)[ids]
        grade = (torch.arange(10.0) * mass).sum() / mass.sum() / 9
        found.append(float(grade) if mass.sum() >= 0.01 else 0.0)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    with (folder / "output.txt").open("a") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "forgedsl", "run", *words], cwd=folder, stdout=out, stderr=out,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def test_judges_in_engines_of_the_policy(tmp_path: Path) -> None:
    """Both replicas are killed on the way, and the run is resumed for two more steps."""
    pytest.importorskip("vllm")
    make_adapter(tmp_path / "adapter")
    (tmp_path / "shared.forge").write_text(PROGRAM)
    process = start(tmp_path, "shared.forge", "--run-dir", "run")
    run = tmp_path / "run"
    until = time.monotonic() + 150
    while not rows(run / "metrics.jsonl") and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.1)
    begun = [e for e in rows(run / "events.jsonl") if e["kind"] == "process.start"]
    assert {e["service"] for e in begun if e["service"] in ("base", "judge")} == set()
    for pid in [e["pid"] for e in begun if e["service"] == "generator"]:
        os.kill(pid, signal.SIGKILL)
    assert process.wait(150) == 0, (tmp_path / "output.txt").read_text()
    resumed = start(tmp_path, "shared.forge", "--resume", "run", "schedule.steps=26")
    assert resumed.wait(150) == 0, (tmp_path / "output.txt").read_text()
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == list(range(1, 27))
    ready = [e for e in rows(run / "events.jsonl") if e["kind"] == "service.ready"]
    ours = [e for e in ready if e["service"] == "generator"]
    assert len(ours) == 6, "two engines, started again, and those of the resumed run"
    for event in ours:
        (proof,) = event["facts"]["tenants"]
        assert (proof["service"], proof["proved"]) == ("judge", 42)
    samples = rows(run / "samples.jsonl")
    texts = [f"{each['prompt']}{each['response']}+1=" for each in samples]
    merged = merged_folder(MODEL, tmp_path / "adapter", tmp_path / "merged", wide=True, origin="")
    wanted = zip(grades(MODEL, texts), grades(merged, texts), strict=True)
    assert samples
    for sample, (plain, hard) in zip(samples, wanted, strict=True):
        assert sample["score"] == pytest.approx(plain + hard, abs=1e-4)
    (frozen,) = [row for row in rows(run / "proofs.jsonl")[-8:] if row["proof"] == "frozen"]
    assert (frozen["service"], frozen["proved"]) == ("judge", 42)
