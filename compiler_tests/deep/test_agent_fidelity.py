"""What agents get from the endpoint is what the policy of that version would write, token by token.

A tiny random model serves 1,000 requests with tools, streams, parallel requests and a template that
drops earlier thoughts, while a trainer changes its weights. Then torchtitan's model computes each
recorded token's log-prob again, with the weights of the version that the run recorded for it.

    forgec run --> batches/step-N.json (tokens, log-probs, versions), checkpoints of all steps
    fidelity_scores.py FOLDER of each version --> log-probs of each training row

FORGE_DEEP=1 runs it, some four minutes on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forgedsl.cli.export import export_run

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(1200),
]
HERE = Path(__file__).parent
STEPS = 17
PIPELINE = f"""forge 1
import "std/rl" as rl
import python "asker.py" as asker

model policy {{ source = local("model"), dtype = f32, context = 6144 }}
dataset sums {{
  source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = chat(user = row.question)
  target = after(row.answer, "#### ")
}}
service trainer : titan(policy) {{
  device = cpu, optimizer.lr = 3e-4, batch {{ seq_len = 6144, rows = 2 }}
}}
service generator : vllm(policy) {{ device = cpu, sampling.max_tokens = 40 }}
environment agent = asker.Asker() {{ deadline = 240s, history = template }}
reward vowels(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)
rubric grade {{ score = vowels, on_truncated = 0.1 }}
loss pg(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {{
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-ratio * adv, mask)
  report ratio = token_mean(ratio, mask)
}}
flow train {{
  prompt  = sums.draw(2)
  rollout = generator.play(prompt, env = agent, n = 4)
  batch   = replay(rollout, adv = rl.mean_baseline(grade(rollout)))
  trainer.step(batch, loss = pg)
  sync trainer -> generator {{ on_swap = recompute }}
}}
schedule async {{ steps = {STEPS}, max_policy_age = 1 }}
checkpoint {{ every = 1, keep = {STEPS} }}
"""
NEAR = 1e-4
"""nats: two f32 implementations of the same model"""


class Token(NamedTuple):
    """A token that the policy wrote: its place in the row, and what was recorded."""

    at: int
    version: int
    logprob: float


class TrainingRow(NamedTuple):
    trajectory: int
    token_ids: list[int]
    tokens: list[Token]


def tokenizer_of(folder: Path) -> Any:
    """Load the tokenizer. The import loads triton, and tests of kernels, which are collected beside
    this file, choose its interpreter before that."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fidelity")
    script = Path(__file__).parent / "fidelity_model.py"
    # Its models import triton; tests of kernels choose its interpreter before that.
    subprocess.run([sys.executable, str(script), str(made / "model")], check=True)
    (made / "asker.py").write_text((HERE / "fidelity_agent.py").read_text("utf-8"), "utf-8")
    (made / "t.forge").write_text(PIPELINE, "utf-8")
    words = ("run", "t.forge", "--run-dir", "run", "--record-batches", str(STEPS))
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words],
        cwd=made, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[TrainingRow]:
    found: list[TrainingRow] = []
    trajectory = 0
    for step in range(1, STEPS + 1):
        recorded = json.loads((folder / f"run/batches/step-{step}.json").read_text())
        for sample in recorded["batch"]["samples"]:
            found += training_rows(trajectory, sample)
            trajectory += 1
    return found


def training_rows(trajectory: int, sample: dict[str, Any]) -> list[TrainingRow]:
    """Cut a trajectory into its rows. Versions count the policy's tokens, in order."""
    ids, first = sample["token_ids"], sample["num_prompt"]
    versions = [v for v, count in sample["versions"] for _ in range(count)]
    written = [i for i, learned in enumerate(sample["mask"]) if learned]
    assert len(written) == len(versions)
    behavior = sample["token_fields"]["behavior"]
    tokens = [Token(first + i, v, behavior[i]) for i, v in zip(written, versions, strict=True)]
    edges = [0, *sample["row_starts"], len(ids)]
    return [
        TrainingRow(
            trajectory, ids[a:b], [t._replace(at=t.at - a) for t in tokens if a <= t.at < b]
        )
        for a, b in pairwise(edges)
    ]


def other_version(version: int) -> int:
    return version - 1 if version else 1


@pytest.fixture(scope="module")
def scored(folder: Path, rows: list[TrainingRow]) -> dict[int, dict[int, list[float]]]:
    """Log-probs by version and row, of each token but the first: under the versions of its tokens,
    and for each under another one."""
    folders = {0: str(folder / "model")}
    for step in range(1, STEPS):
        folders[step] = export_run(folder / "run", step=step, to=str(folder / f"v{step}"))
    wanted = defaultdict(set)
    for number, row in enumerate(rows):
        for version in {token.version for token in row.tokens}:
            wanted[version].add(number)
            wanted[other_version(version)].add(number)
    asked = {
        "folders": folders, "rows": [row.token_ids for row in rows],
        "wanted": {version: sorted(numbers) for version, numbers in wanted.items()},
    }  # fmt: skip
    request = folder / "request.json"
    request.write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, HERE / "fidelity_scores.py", request, folder / "scores.json"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "scores.json").read_text())
    return {int(v): {int(n): each for n, each in of.items()} for v, of in found.items()}


def test_the_trainer_gives_each_token_the_logprob_of_its_version(
    rows: list[TrainingRow], scored: dict[int, dict[int, list[float]]]
) -> None:
    gaps, others = [], []
    for number, row in enumerate(rows):
        for token in row.tokens:
            gaps.append(abs(scored[token.version][number][token.at - 1] - token.logprob))
            other = scored[other_version(token.version)]
            others.append(abs(other[number][token.at - 1] - token.logprob))
    versions = defaultdict(set)
    for row in rows:
        versions[row.trajectory] |= {token.version for token in row.tokens}
    swapped = sum(len(each) > 1 for each in versions.values())
    inside = sum(
        before.version != after.version and after.at == before.at + 1
        for row in rows
        for before, after in pairwise(row.tokens)
    )
    print(
        f"\n{len(versions)} trajectories, {len(rows)} rows, {len(gaps)} tokens; {swapped} "
        f"trajectories and {inside} answers with several versions; largest gap {max(gaps):.1e}, "
        f"mean gap to another version {sum(others) / len(others):.3f}"
    )
    assert max(gaps) < NEAR
    assert sum(others) / len(others) > 100 * NEAR  # the check sees a wrong version
    assert swapped > 0
    assert inside > 0


def test_the_mean_ratio_is_one_where_the_weights_are_those_that_sampled(folder: Path) -> None:
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    fresh = [step["loss/ratio"] for step in steps if step["age_max"] == 0]
    assert fresh
    assert all(abs(ratio - 1) < NEAR / 2 for ratio in fresh)


def test_the_requests_had_tools_streams_thoughts_and_came_in_parallel(
    folder: Path, rows: list[TrainingRow]
) -> None:
    tokenizer = tokenizer_of(folder)
    texts = [tokenizer.decode(row.token_ids) for row in rows]
    said = json.loads((folder / "run/samples.jsonl").read_text().splitlines()[0])
    assert "turns" in said
    counts = {
        "requests": sum(len(starts(row)) for row in rows),
        "rows of rewritten history": len(rows) - len({row.trajectory for row in rows}),
        "tool results": sum(text.count("<|im_start|>tool") for text in texts),
        "thoughts": sum(text.count("</think>") for text in texts),
    }
    print(f"\n{counts}")
    assert counts.pop("requests") >= 1000
    assert min(counts.values()) > 50


def starts(row: TrainingRow) -> list[int]:
    """Places where the policy began to write."""
    found = [token.at for token in row.tokens]
    return [at for at, before in zip(found, [-2, *found], strict=False) if at != before + 1]


def test_tokenizing_the_text_again_gives_other_tokens(
    folder: Path, rows: list[TrainingRow]
) -> None:
    """The reason why the endpoint keeps tokens. A trained model writes fewer such answers."""
    tokenizer = tokenizer_of(folder)
    other, trajectories = set(), {row.trajectory for row in rows}
    for row in rows:
        text = tokenizer.decode(row.token_ids, skip_special_tokens=False)
        if tokenizer(text, add_special_tokens=False)["input_ids"] != row.token_ids:
            other.add(row.trajectory)
    print(f"\n{len(other)} of {len(trajectories)} trajectories have other tokens from their text")
    assert other
