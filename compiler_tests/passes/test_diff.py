"""Changes between jobs and their classes; generated code is compared by meaning."""

import pytest
from forge_texts import GRPO, changed, lower_of

from forgedsl.lower.diff import compare
from forgedsl.lower.formula import meanings
from forgedsl.report.diff import render, shortened


def job(text, folder, *overrides):
    lowered, diagnostics = lower_of(text, *overrides, folder=folder)
    assert lowered is not None, diagnostics
    return lowered.job


def changes(text, folder, *overrides):
    return compare(job(GRPO, folder), job(text, folder, *overrides))


def test_equal_jobs(tmp_path):
    assert changes(GRPO, tmp_path) == ()


@pytest.mark.parametrize(
    ("override", "impact", "path"),
    [
        ("trainer.optimizer.lr=2e-6", "numerics", "trainer.optimizer.lr"),
        ("trainer.batch.rows=2", "numerics", "trainer.batch.rows"),
        ("trainer.optimizer.precision=bf16", "numerics", "trainer.optimizer.precision"),
        ("trainer.memory.offload=true", "placement", "trainer.memory.offload"),
        ("generator.sampling.temperature=0.9", "numerics", "generator.sampling.temperature"),
        ("run.seed=3", "numerics", "run.seed"),
        ("policy.dtype=f32", "numerics", "policy.dtype"),
        ("total.on_error=0.0", "numerics", "total.on_error"),
        ("correct.timeout=5s", "numerics", "correct.timeout"),
        ("generator.replicas=1", "placement", "generator.replicas"),
        ("generator.route=sticky", "placement", "generator.route"),
        ("trainer.memory.activation_checkpoint=full", "placement",
         "trainer.memory.activation_checkpoint"),
        ("correct.procs=4", "placement", "correct.procs"),
        ("launcher=slurm(\"gpu\")", "placement", "launcher.kind"),
        ("schedule.steps=600", "numerics", "schedule.steps"),
        ("schedule.starve_timeout=5min", "observability", "schedule.starve_timeout"),
        ("checkpoint.every=7", "observability", "checkpoint.every"),
        ("logging.samples=2", "observability", "logging.samples"),
        ("run.name=other", "observability", "run.name"),
    ],
)  # fmt: skip
def test_class_of_a_setting(tmp_path, override, impact, path):
    found = changes(GRPO, tmp_path, override)
    assert (path, impact) in [(c.path, c.impact) for c in found]
    assert found[0].impact == impact


PYTHON = """
import torch

def isbool(prompt, response, target):
    return float(response in ("true", "false"))

def opposite(prompt, response, target):
    return 1.0 - isbool(prompt, response, target)
"""


def test_another_function_of_the_same_python_file_is_numerics(tmp_path):
    (tmp_path / "mine.py").write_text(PYTHON)
    text = changed(
        GRPO,
        ("forge 1\n", 'forge 1\nimport python "mine.py" as mine\n'),
        ("= rl.math_equal(tolerance = 1e-6)", "= mine.isbool"),
    )
    other = changed(text, ("= mine.isbool", "= mine.opposite"))
    (found,) = compare(job(text, tmp_path), job(other, tmp_path))
    assert (found.path, found.impact) == ("correct.function", "numerics")
    assert (found.before, found.after) == ("isbool", "opposite")


def test_another_reward_of_the_library_is_named(tmp_path):
    found = changes(changed(GRPO, ("rl.math_equal(tolerance = 1e-6)", "rl.exact")), tmp_path)
    (named,) = [change for change in found if change.path == "correct.function"]
    assert (named.impact, named.before, named.after) == ("numerics", "math_equal", "exact")


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("trainer.lora.rank=8", "trainer.lora"),
        ('generator.engine.extra.quantization="fp8"', "generator.extra"),
        ("generator.engine.kv_dtype=fp8", "generator.engine.kv_dtype"),
    ],
)
def test_what_was_not_there_before_is_numerics(tmp_path, override, path):
    found = [c for c in changes(GRPO, tmp_path, override) if c.impact == "numerics"]
    assert [c.path for c in found if c.path.startswith(path)]


def test_a_value_head_is_numerics(tmp_path):
    text = changed(GRPO, ("trainer : titan(policy)", "trainer : titan(value_head(policy))"))
    found = changes(text, tmp_path)
    assert ("trainer.value_head", "numerics") in [(c.path, c.impact) for c in found]


def test_two_advantages_that_change_places_are_numerics(tmp_path):
    both = changed(
        GRPO,
        ("ref: [B, T] f32, adv: [B] f32,", "ref: [B, T] f32, adv: [B] f32, old: [B] f32,"),
        ("-ratio * adv +", "-ratio * adv + 0.1 * old * logprob +"),
        ("adv = rl.mean_baseline(score)", "adv = rl.mean_baseline(score), old = rl.rloo(score)"),
    )
    other = changed(
        both, ("adv = rl.mean_baseline(score), old = rl.rloo(", "adv = rl.rloo(score), old = "
               "rl.mean_baseline("),
    )  # fmt: skip
    found = compare(job(both, tmp_path), job(other, tmp_path))
    assert "numerics" in {change.impact for change in found}


def test_another_mask_of_a_count_is_numerics(tmp_path):
    one = changed(GRPO, ("logprob, ref), mask)", "logprob, ref), mask and adv > -9.0)"))
    two = changed(GRPO, ("logprob, ref), mask)", "logprob, ref), mask and adv > -8.0)"))
    found = compare(job(one, tmp_path), job(two, tmp_path))
    assert "numerics" in {change.impact for change in found}


def test_comments_and_moved_lines_are_cosmetic(tmp_path):
    text = changed(GRPO, ("forge 1\n", "forge 1\n# a comment\n\n"))
    found = changes(text, tmp_path)
    assert {c.impact for c in found} == {"cosmetic"}


def test_renamed_variables_of_a_loss_are_cosmetic(tmp_path):
    text = changed(GRPO, ("  ratio = exp", "  weight = exp"), ("(-ratio * adv", "(-weight * adv"))
    assert {c.impact for c in changes(text, tmp_path)} <= {"cosmetic"}


def test_another_formula_is_numerics_and_shown(tmp_path):
    found = changes(changed(GRPO, ("-10.0, 10.0", "-10.0, 5.0")), tmp_path)
    (loss,) = [c for c in found if c.path == "loss grpo"]
    assert loss.impact == "numerics"
    assert "-10.0, 10.0" in loss.before
    assert "-10.0, 5.0" in loss.after
    assert loss.where.startswith("test.forge:")


def test_a_report_is_observability(tmp_path):
    text = changed(GRPO, (", mask)\n}", ", mask)\n  report size = token_mean(ratio, mask)\n}"))
    found = [c for c in changes(text, tmp_path) if c.impact != "cosmetic"]
    assert [(c.path, c.impact, c.before) for c in found] == [
        ("loss grpo.size", "observability", "-")
    ]


def test_a_parameter_has_the_class_of_its_effect(tmp_path):
    found = {c.path: c for c in changes(GRPO, tmp_path, "beta=0.5")}
    assert found["param beta"].impact == "numerics"
    assert (found["param beta"].before, found["param beta"].after) == ("0.02", "0.5")


def test_a_dropped_service_and_its_nodes(tmp_path):
    found = {c.path: c for c in changes(GRPO, tmp_path, "beta=0.0")}
    assert (found["service reference"].before, found["service reference"].after) == (
        "declared",
        "-",
    )
    assert found["flow ref_lp"].impact == "numerics"


def test_more_prompts_are_said_once_in_the_flow(tmp_path):
    found = changes(changed(GRPO, ("gsm8k.draw(16)", "gsm8k.draw(8)")), tmp_path)
    paths = [c.path for c in found]
    assert "flow prompt.count" in paths
    assert "schedule.prompts" not in paths


def test_a_renamed_file_with_equal_rows_is_cosmetic(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"question": "1+1", "answer": "2"}\n')
    first = changed(GRPO, ('hf("openai/gsm8k", split = "train")', 'jsonl("a.jsonl")'))
    second = changed(first, ("a.jsonl", "b.jsonl"))
    found = compare(job(first, tmp_path), job(second, tmp_path))
    assert {c.impact for c in found} == {"cosmetic"}


def test_other_rows_are_numerics(tmp_path):
    text = changed(GRPO, ('hf("openai/gsm8k", split = "train")', 'jsonl("a.jsonl")'))
    (tmp_path / "a.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    first = job(text, tmp_path)
    (tmp_path / "a.jsonl").write_text('{"question": "1+2", "answer": "3"}\n')
    (found,) = compare(first, job(text, tmp_path))
    assert (found.path, found.impact) == ("gsm8k.source.sha256", "numerics")


def test_formula_is_free_of_names(tmp_path):
    tree = job(GRPO, tmp_path).losses["grpo"].tree
    formula = meanings(tree)["loss"]
    assert formula.startswith("(total_sum(")
    assert "exp(clamp((logprob - behavior), -10.0, 10.0))" in formula
    assert "ratio" not in formula


def test_long_values_are_cut_around_the_difference():
    before = f"{'a' * 60}0.8{'b' * 60}"
    one, other = shortened(before, before.replace("0.8", "0.7"), 60)
    assert "0.8" in one
    assert "0.7" in other
    assert len(one) + len(other) + 4 <= 60
    one, other = shortened(before, before.replace("0.8", "0.7"), 40)
    assert one != other
    assert len(one) + len(other) + 4 <= 40


def test_report(tmp_path):
    text = render(changes(GRPO, tmp_path, "trainer.optimizer.lr=2e-6"), title="a -> b")
    assert "numerics       changes in what is computed" in text
    assert "1e-06 -> 2e-06" in text
    assert max(map(len, text.splitlines())) <= 100
    assert render((), title="a -> b") == "a -> b\n  none: the jobs are the same\n"
