"""Generated text: formatted, deterministic, reviewable, and it runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from forgedsl.api import load_functions, load_text
from forgedsl.diagnostics import Reporter
from forgedsl.emit.python import emit_program
from forgedsl.errors import SourceError
from forgedsl.losses import text as tree_text
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime.program import Row, RowError

PROGRAM = '''forge 1
import "std/rl" as rl
param bonus : float = 0.25

model policy { source = random(1), arch = qwen3("0.6B"), dtype = f32, context = 64 }

dataset sums {
  source = jsonl("sums.jsonl")
  system = """You add numbers. Think first, then answer inside <answer> tags, with nothing else."""
  prompt = chat(system, "Add: " + row.question)
  target = strip(after(row.answer, "#### "))
}

service trainer : titan(policy) { optimizer.lr = 1e-3, batch { seq_len = 64, rows = 2 } }
service generator : vllm(policy) { sampling { max_tokens = 16 } }

fn scaled(tokens: float, limit: float) -> float = clamp(1 - tokens / limit, 0.0, 1.0)

reward exact = rl.exact
reward brief(r: Rollout, target: str) -> f32 {
  short = scaled(r.num_tokens, 16)
  return short + bonus if matches(r.response, r"^[0-9]+$") and not r.truncated else -0.5 * short
}
rubric total { score = 0.9 * exact + 0.1 * brief ** 2, on_truncated = 0.0 }

filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0

flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  score   = total(rollout, prompt.target)
  kept    = rollout.keep(mixed(score))
  batch   = replay(kept, adv = rl.rloo(score))
  trainer.step(batch, loss = rl.reinforce)
  sync trainer -> generator
}
schedule sync { steps = 1 }
'''


@pytest.fixture
def program(tmp_path):
    """The program module of PROGRAM, run."""
    (tmp_path / "sums.jsonl").write_text('{"question": "1+2", "answer": "#### 3"}\n')
    loaded = load_text(PROGRAM, "sums.forge", folder=tmp_path)
    text = emit_program(loaded.checked, loaded.sources)
    names: dict[str, object] = {}
    exec(compile(text, "<program>", "exec"), names)
    return SimpleNamespace(text=text, **{k: v for k, v in names.items() if not k.startswith("__")})


def loss_text(name):
    functions, sources = load_functions("std/rl")
    reporter = Reporter()
    lowered = lower_loss(functions[name], reporter, sources)
    assert lowered is not None
    return lowered


@pytest.mark.parametrize("name", ["grpo", "gspo", "dpo"])
def test_golden(golden, name):
    lowered = loss_text(name)
    golden(f"losses/{name}.py.txt", lowered.source)
    golden(f"losses/{name}.tree.txt", lowered.tree)
    golden(f"losses/{name}.kernels.py.txt", lowered.kernels)


def test_generated_modules_are_formatted(losses, program, tmp_path):
    for name in losses.names:
        (tmp_path / f"{name}.py").write_text(losses.standard(name).source)
        (tmp_path / f"{name}_kernels.py").write_text(losses.standard(name).kernels.text)
    (tmp_path / "program.py").write_text(program.text)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100"]
    done = subprocess.run([*command, "--diff", str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == ""


def test_generation_is_deterministic(standard_loss):
    ast.parse(standard_loss.source)
    assert tree_text.write(tree_text.read(standard_loss.tree)) == standard_loss.tree


def test_statements_carry_their_place(standard_loss):
    inside = standard_loss.source.split("def loss(x):")[1].split("def prepare")[0]
    statements = [line for line in inside.splitlines() if " = " in line]
    commented = [line for line in inside.splitlines() if "# rl.forge:" in line]
    assert len(commented) == len(statements)


def test_dataset_columns(program):
    row = Row({"question": "1+2", "answer": "so #### 3 "})
    system, user = program.dataset_sums_prompt(row)
    assert system["content"].startswith("You add numbers. Think first")
    assert user == {"role": "user", "content": "Add: 1+2"}
    assert program.dataset_sums_target(row) == "3"


def test_missing_columns_are_named(program):
    with pytest.raises(RowError, match="no column `answer`; its columns are question"):
        program.dataset_sums_target(Row({"question": "1+2"}))


@pytest.mark.parametrize(
    ("response", "tokens", "truncated", "want"),
    [("42", 8, False, 0.75), ("42", 8, True, -0.25), ("no", 16, False, 0.0)],
)
def test_reward_bodies(program, response, tokens, truncated, want):
    r = SimpleNamespace(response=response, num_tokens=tokens, truncated=truncated)
    assert program.reward_brief(r, target="42") == pytest.approx(want)


def test_rubrics(program):
    assert program.rubric_total({"exact": 1.0, "brief": 0.5}) == pytest.approx(0.925)


def test_filters_and_advantages(program):
    assert program.filter_mixed(torch.tensor([1.0, 0.0, 1.0])) is True
    assert program.filter_mixed(torch.tensor([1.0, 1.0])) is False
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])
    got = program.advantage_rl_rloo(rewards)
    torch.testing.assert_close(got, 4 / 3 * (rewards - 0.5))


def test_mistakes_in_bodies_are_diagnostics(tmp_path):
    (tmp_path / "sums.jsonl").write_text("{}\n")
    text = PROGRAM.replace('"Add: " + row.question', "2 * (1 + r'x')").replace("r'x'", '"x"')
    loaded = load_text(text, "sums.forge", folder=tmp_path)
    with pytest.raises(SourceError, match="T702"):
        emit_program(loaded.checked, loaded.sources)


@pytest.mark.parametrize(
    ("name", "rewards", "want"),
    [
        ("group_norm", [1.0, 0.0], [1.0, -1.0]),
        ("mean_baseline", [1.0, 0.0, 0.5], [0.5, -0.5, 0.0]),
        ("rloo", [1.0, 0.0, 0.0], [1.0, -0.5, -0.5]),
        ("maxrl", [1.0, 0.0], [1.0, -1.0]),
        ("maxrl", [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_standard_advantages(tmp_path, name, rewards, want):
    (tmp_path / "sums.jsonl").write_text("{}\n")
    text = PROGRAM.replace("rl.rloo", f"rl.{name}")
    loaded = load_text(text, "sums.forge", folder=tmp_path)
    names: dict[str, object] = {}
    exec(emit_program(loaded.checked, loaded.sources), names)
    got = names[f"advantage_rl_{name}"](torch.tensor(rewards, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor(want).double(), rtol=1e-4, atol=1e-4)


# two prompts with two and three completions, of 1, 3, 2, 1 and 1 tokens
STEP_REWARDS = [1.0, 0.0, 1.0, 0.0, 0.5]
STEP_TOKENS = [1.0, 3.0, 2.0, 1.0, 1.0]
STEP_GROUPS = [0, 0, 1, 1, 1]


def whitened(values, weights):
    mean = sum(w * v for v, w in zip(values, weights, strict=True)) / sum(weights)
    squares = sum(w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True)) / sum(weights)
    return [(v - mean) / squares**0.5 for v in values]


@pytest.mark.parametrize(
    ("call", "want"),
    [
        ("rl.reinforce_pp(score, rollout.num_tokens)", whitened(STEP_REWARDS, STEP_TOKENS)),
        (
            "rl.reinforce_pp_baseline(score, rollout.num_tokens)",
            whitened([0.5, -0.5, 0.5, -0.5, 0.0], STEP_TOKENS),
        ),
        ("rl.lite_ppo(score)", [x / 0.2**0.5 for x in (0.5, -0.5, 0.5, -0.5, 0.0)]),
        ("mine(score)", [0.0 + 2 / 5, -1.0 + 2 / 5, 0.0 + 3 / 5, -1.0 + 3 / 5, -0.5 + 3 / 5]),
    ],
)
def test_advantages_of_the_whole_step(tmp_path, call, want):
    (tmp_path / "sums.jsonl").write_text("{}\n")
    own = "advantage mine(r: [B] f32) -> [B] f32 = (\n"
    own += "  r - max(r, G) + min(r, G) + max(r, B) * count(r, G) / count(r, B)\n)\n"
    text = PROGRAM.replace("rl.rloo(score)", call).replace("flow train {", f"{own}flow train {{")
    loaded = load_text(text, "sums.forge", folder=tmp_path)
    names: dict[str, object] = {}
    exec(emit_program(loaded.checked, loaded.sources), names)
    given = {
        "r": torch.tensor(STEP_REWARDS, dtype=torch.float64),
        "num_tokens": torch.tensor(STEP_TOKENS, dtype=torch.float64),
        "group": torch.tensor(STEP_GROUPS),
    }
    name = "advantage_" + call.partition("(")[0].replace(".", "_")
    if "num_tokens" not in call:
        del given["num_tokens"]
    torch.testing.assert_close(names[name](**given).tolist(), want, rtol=1e-4, atol=1e-4)
