"""Quick fixes for names that mean something else: of other tools, and of "did you mean"."""

from pathlib import Path

import pytest

from forgedsl.ide import actions
from forgedsl.ide.workspace import Workspace
from forgedsl.mistakes.other_tools import EQUIVALENTS, FUNCTION_EQUIVALENTS
from forgedsl.mistakes.replacements import (
    ARGUMENTS,
    CALLS,
    DRAWN,
    FORMS,
    NAMES,
    SETTINGS,
    VALUES,
)

TEXT = """\
forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer   : titan(policy) { device = cpu, batch { seq_len = 64, rows = 256 } }
service generator : vllm(policy)  { device = cpu, sampling { max_tokens = 16 } }
reward correct = rl.math_equal
loss own(logprob: diff [B, T] f32, adv: [B] f32, behavior: [B, T] f32, mask: [B, T] bool) {
  ratio = exp(logprob - behavior)
  minimize -token_mean(ratio * adv, mask)
}
flow train {
  prompt  = sums.draw(8)
  rollout = generator.sample(prompt, n = 8)
  score   = correct(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 80, max_policy_age = 1 }
eval held_out { dataset = sums, score = correct, every = 10 }
"""
TRAINER, GENERATOR = "device = cpu, batch", "device = cpu, sampling"
BODY = "  ratio = exp(logprob - behavior)"
OF_GPUS = {"gpu_memory_utilization"}
"""settings of other tools that say nothing on a CPU"""
NEED_MORE = {
    "beta", "env", "global_step", "mlflow", "output_dir", "reference", "report_to", "reward_func",
    "reward_funcs", "reward_weights", "row", "split", "trackio", "wandb", "warmup_ratio", "weights",
    "with_gpus",
}  # fmt: skip
"""settings of other tools that a declaration, a choice or another unit replaces"""
NEED_THOUGHT = {
    "cat", "concat", "concatenate", "findall", "float", "format", "fullmatch", "int", "join",
    "log_softmax", "match", "merge", "search", "softmax", "split",
}  # fmt: skip
"""functions of other tools that no one call replaces"""


def document(text, path=Path("a.forge")):
    workspace = Workspace()
    workspace.open(path, text)
    return workspace.document(path)


def applied(text, edits):
    for edit in sorted(edits, key=lambda each: -each.span.start):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


def fixes(text, code="", path=Path("a.forge")):
    """The texts after each quick fix of the findings with a code, by title."""
    offered = actions.actions(document(text, path), 0, len(text))
    return {
        each.title: applied(text, each.edits)
        for each in offered
        if each.kind == "fix" and each.finding.code.startswith(code or "F")
    }


def errors(text):
    return [f"{f.code} {f.message}" for f in document(text).findings if f.severity == "error"]


def first(text, code=""):
    """The text after the first quick fix."""
    (_, fixed), *_ = fixes(text, code).items()
    return fixed


def value_of(name):
    words = {"learning_rate": "1e-5", "adam_beta1": "0.8", "gpu_memory_utilization": "0.5",
             "lr_scheduler_type": '"cosine"', "enable_cpu_offload": "false",
             "model_name_or_path": '"Qwen/Qwen3-0.6B"', "torch_dtype": '"bfloat16"',
             "max_length": "128", "max_seq_length": "128", "gpus": "0"}  # fmt: skip
    return words.get(name) or ("true" if name in VALUES else "1")


def test_every_name_of_another_tool_has_a_replacement_or_needs_more():
    assert {*SETTINGS, *DRAWN, *ARGUMENTS, *NAMES, *NEED_MORE} | {*CALLS} >= {*EQUIVALENTS}
    assert not {*SETTINGS, *DRAWN, *ARGUMENTS, *NAMES} & NEED_MORE
    assert {*CALLS, *NEED_THOUGHT} >= {*FUNCTION_EQUIVALENTS}
    assert not {*CALLS} & NEED_THOUGHT
    assert {*FORMS, *VALUES} <= {*SETTINGS}


@pytest.mark.parametrize("name", sorted({*SETTINGS, *DRAWN} - {"num_workers", "workers"}))
def test_a_setting_of_another_tool_moves_to_its_place(name):
    line = f"{name} = {value_of(name)}"
    text = TEXT.replace(GENERATOR, "sampling") if name in OF_GPUS else TEXT
    if SETTINGS.get(name) is None or SETTINGS[name][0]:
        fixed = first(text.replace("schedule async", f"{line}\nschedule async"), "F119")
        assert line not in fixed.split("\n")
        assert not [error for error in errors(fixed) if error.startswith(("F", "S"))]
    inside = text.replace(TRAINER, f"device = cpu, {line}, batch", 1)
    if "parallel" not in str(SETTINGS.get(name)) and name not in ("gpus", "hosts"):
        fixed = first(inside, "F103")
        assert f"cpu, {name} =" not in fixed
        assert not [error for error in errors(fixed) if error.startswith(("F", "S"))]


@pytest.mark.parametrize(
    ("old", "new", "fixed"),
    [
        (TRAINER, "learning_rate = 1e-5, batch", "optimizer.lr = 1e-5, batch"),
        ("seq_len = 64", "max_length = 128", "seq_len = 128"),
        (TRAINER, "workers = 2, batch", "procs = 2, batch"),
        (TRAINER, "optimizer { learning_rate = 1e-5 }, batch", "optimizer { lr = 1e-5 }, batch"),
        ("rl.dapo", "rl.dapo(epsilon = 0.1)", "rl.dapo(clip_low = 0.1, clip_high = 0.1)"),
        ("rl.dapo", "rl.dapo(epsilon_high = 0.3)", "rl.dapo(clip_high = 0.3)"),
        ("schedule", 'launcher = slurm(queue = "a")\nschedule', 'slurm(partition = "a")'),
        ("schedule", 'launcher = sbatch(partition = "a")\nschedule', 'slurm(partition = "a")'),
        ("schedule", "launcher = localhost\nschedule", "launcher = local()"),
        (BODY, "  ratio = torch.exp(logprob)", "  ratio = exp(logprob)"),
        (BODY, "  ratio = logprob.detach()", "  ratio = stop(logprob)"),
        (BODY, "  ratio = torch.minimum(logprob, behavior)", "  ratio = min(logprob, behavior)"),
        (BODY, "  ratio = relu(logprob)", "  ratio = max(logprob, 0.0)"),
        (BODY, "  ratio = square(logprob)", "  ratio = (logprob) ** 2"),
        (BODY, "  ratio = prod(logprob, adv)", "  ratio = (logprob * adv)"),
        (BODY, "  ratio = where(mask, logprob, 0.0)", "  ratio = (logprob if mask else 0.0)"),
        ("row.question", "trim(row.question)", "strip(row.question)"),
        ("row.question", "str(row.question)", "text(row.question)"),
        ("row.question", "coalesce(row.a, row.question)", "first(row.a, row.question)"),
        ("= replay(", "= collate(", "= replay("),
    ],
)
def test_what_replaces_it_is_written(old, new, fixed):
    done = first(TEXT.replace(old, new, 1))
    assert fixed in done
    assert new not in done


def test_a_setting_moves_to_every_declaration_that_may_be_meant():
    frozen = "service reference : titan(policy) {}\n"
    other = "service other : titan(policy) { device = cpu }\n"
    text = TEXT.replace("reward", f"{frozen}{other}learning_rate = 1e-5\nreward", 1)
    assert [*fixes(text, "F119")] == [
        "F119: move it to `trainer`: `optimizer.lr = 1e-5` (not a safe fix)",
        "F119: move it to `other`: `optimizer.lr = 1e-5` (not a safe fix)",
    ]


def test_settings_of_a_profile_stay_in_it():
    text = f"{TEXT}profile a {{ trainer {{ learning_rate = 1e-5 }} }}\n"
    assert "profile a { trainer { optimizer.lr = 1e-5 } }" in first(text, "F103")
    text = f"{TEXT}profile a {{ trainer.learning_rate = 1e-5 }}\n"
    assert "profile a { trainer.optimizer.lr = 1e-5 }" in first(text, "F103")


def test_every_name_that_may_be_meant_is_offered():
    text = TEXT.replace("loss = rl.dapo)", "loss = rl.drpo)")
    offered = [title for title in fixes(text) if title.startswith("F101")]
    names = ("rl.dapo", "rl.dpo", "rl.dppo", "rl.grpo")
    assert offered == [f"F101: replace `rl.drpo` by `{name}` (not a safe fix)" for name in names]


def test_a_setting_of_another_block_moves_there():
    text = TEXT.replace("seq_len = 64", "seq_len = 64, lr = 1e-5")
    fixed = first(text, "F103")
    assert "{ optimizer.lr = 1e-5, device = cpu, batch { seq_len = 64, rows = 256 } }" in fixed


def test_a_misspelt_python_file_is_renamed_before_it_is_created(tmp_path):
    (tmp_path / "rewards.py").write_text("def short(prompt, response):\n    return 1.0\n")
    path = tmp_path / "a.forge"
    text = 'import python "rewrads.py" as own\nreward short = own.short\n'
    offered = actions.actions(document(text, path), 0, len(text))
    found = [each for each in offered if each.finding.code == "F115"]
    assert [(each.title, each.kind) for each in found][:2] == [
        ("F115: replace `rewrads.py` by `rewards.py` (not a safe fix)", "fix"),
        ("F115: create rewrads.py", "create"),
    ]
    fixed = applied(text, found[0].edits)
    assert fixed == text.replace("rewrads", "rewards")
    assert "F115" not in {finding.code for finding in document(fixed, path).findings}


def test_a_misspelt_module_is_renamed(tmp_path):
    (tmp_path / "losses.forge").write_text("param size : int = 3\n")
    text = 'import "loses" as own\n'
    (fixed,) = fixes(text, "F115", tmp_path / "a.forge").values()
    assert fixed == 'import "losses" as own\n'
