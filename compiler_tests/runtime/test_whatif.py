"""A what-if without a model: losses from log-probs, what a recording lacks, tables."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_endpoints import job

from forgedsl.errors import LaunchError, RunError
from forgedsl.lower import job as spec
from forgedsl.runs.whatif import Completions, LossValues, Step, loss_tables, page, render, summarize
from forgedsl_runtime.data_types import Batch, Prompt, Rollout, Sample
from forgedsl_runtime.losses import compile_loss
from forgedsl_runtime.modules import load_module
from forgedsl_runtime.recorded.files import path_of, write
from forgedsl_runtime.whatif.chosen import check, chosen
from forgedsl_runtime.whatif.losses import Packed, measure
from forgedsl_runtime.whatif.services import RecordedServices

CLIPPED = """forge 1
loss clipped(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)
  report clip_frac = token_mean(abs(ratio - 1) > 0.2, mask)
}
"""


def sample(behavior: list[float], adv: float) -> Sample:
    return Sample(
        token_ids=[7, *range(len(behavior))], num_prompt=1, mask=[True] * len(behavior),
        token_fields={"behavior": behavior}, sequence_fields={"adv": adv},
    )  # fmt: skip


def test_a_loss_from_logprobs_has_the_value_reports_and_gradient_of_its_definition() -> None:
    """Ratios are exp(0.5) and 1 with advantage 1, and exp(-0.5) with advantage -2: the first is
    clipped to 1.2, the last to 0.8; only the second has a gradient."""
    loss = compile_loss(CLIPPED)
    samples = [sample([-1.0, -1.0], 1.0), sample([-1.0], -2.0)]
    found = Packed(loss, samples, [[-0.5, -1.0], [-1.5]]).measured
    assert found.loss == pytest.approx(-(1.2 + 1.0 - 2 * 0.8) / 3)
    assert found.reports == {"clip_frac": pytest.approx(2 / 3)}
    assert found.gradient == pytest.approx(1 / 3)


def test_some_samples_are_measured_as_if_they_were_all() -> None:
    loss = compile_loss(CLIPPED)
    samples = [sample([-1.0, -1.0, -2.0], 1.0), sample([-1.0], -2.0), sample([-1.0, -3.0], 0.5)]
    logprobs = [[-0.5, -1.0, -1.9], [-1.5], [-1.1, -2.0]]
    whole = Packed(loss, samples, logprobs)
    alone = Packed(loss, samples[::2], logprobs[::2]).measured
    assert whole.reports([0, 2]) == pytest.approx(alone.reports)
    assert whole.reports([0, 1, 2]) == whole.measured.reports


def test_another_advantage_of_the_same_tokens_is_measured_as_if_packed_alone() -> None:
    loss = compile_loss(CLIPPED)
    logprobs = [[-0.5, -1.0, -1.9], [-1.5]]
    first = [sample([-1.0, -1.0, -2.0], 1.0), sample([-1.0], -2.0)]
    second = [sample([-1.0, -1.0, -2.0], 0.5), sample([-1.0], 3.0)]
    third = [sample([-1.0, -1.0, -3.0], 0.5), sample([-1.0], 3.0)]  # another token field
    made = Packed(loss, first, logprobs)
    for samples in (second, third):
        found = Packed(loss, samples, logprobs, made).measured
        assert found == Packed(loss, samples, logprobs).measured != made.measured


def test_a_step_of_several_updates_has_their_means() -> None:
    loss = compile_loss(CLIPPED)
    batch = Batch(samples=[sample([-1.0], 1.0), sample([-1.0], 1.0)], members=[0, 1], minibatches=2)
    logprobs = [[-1.0], [-0.9]]
    found = measure(loss, batch, {0: logprobs})
    assert found is not None
    assert found[0].loss == pytest.approx(-(1.0 + torch.tensor(0.1).exp().item()) / 2)
    assert measure(loss, batch, {0: [[-1.0], None]}) is None


def test_the_run_has_to_have_recorded_steps(tmp_path: Path) -> None:
    off = job(logging=spec.Logging(record=None))
    with pytest.raises(LaunchError, match=r"no recorded steps: `logging.record.steps` is none"):
        chosen(tmp_path, off, None)
    write(path_of(tmp_path, 7), [{"columns": "{}"}])
    assert list(chosen(tmp_path, job(), "5:9")) == [7]
    with pytest.raises(LaunchError, match=r"steps 8 of .* are not recorded; recorded are 7 to 7"):
        chosen(tmp_path, job(), "8")
    with pytest.raises(LaunchError, match=r"--steps must be A:B or A"):
        chosen(tmp_path, job(), "x")


DATA = spec.Dataset(
    source=spec.FileSource(kind="jsonl", path="inputs/a", sha256="1"), tokenizer="policy",
    prompt="f", target="g", shuffle=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"datasets": {"data": DATA.model_copy(update={"prompt": "h"})}},
            "dataset `data` differs from the dataset of the run",
        ),
        (
            {"rewards": {"r": spec.Reward(
                kind="python", function="f", positional=("column hint",))}},
            "reward `r` reads the column `hint`, which is not recorded",
        ),
        (
            {"rewards": {"r": spec.Reward(kind="judge", function="j", service="s")}},
            r"reward `r` needs a model \(judge\), and is not recorded",
        ),
        (
            {"losses": {"l": spec.Loss(name="l", source="", tree="", reports=(), fields=(
                spec.LossField(name="entropy", axes=("B", "T"), dtype="f32", diff=True),))}},
            "loss `l` reads entropy of the trained model",
        ),
    ],
)  # fmt: skip
def test_what_is_not_recorded_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Columns `level` alone are recorded."""
    path = path_of(tmp_path, 1)
    write(path, [{"columns": json.dumps({"level": 1})}])
    program = "def f(row): return 1\ndef g(row): return 2\ndef h(row): return 3\n"
    run = job(datasets={"data": DATA}, program=program)
    check(tmp_path, run, run, {1: path})
    with pytest.raises(RunError, match=said):
        check(tmp_path, run, run.model_copy(update=change), {1: path})


def test_another_number_of_completions_is_refused(tmp_path: Path) -> None:
    path = path_of(tmp_path, 1)
    write(path, [{"columns": "{}"}])
    run = job(datasets={"data": DATA})
    nodes = tuple(n.model_copy(update={"n": 9}) if n.op == "sample" else n for n in run.nodes)
    with pytest.raises(RunError, match="`rollout` samples 9 completions, but 4 are recorded"):
        check(tmp_path, run, run.model_copy(update={"nodes": nodes}), {1: path})


def completions(scores: list[tuple[float | None, float | None]]) -> Completions:
    """Two completions in a group."""
    count = len(scores)
    groups = [i // 2 for i in range(count)]
    before, after = zip(*scores, strict=True)
    return Completions(
        group=groups, sibling=[i % 2 for i in range(count)], row=groups, prompt=["<1 + 1>"] * count,
        response=["2"] * count, target=["2"] * count, before=before, after=after,
        parts={"short": ([None] * count, [1.0] * count)}, fields={},
    )  # fmt: skip


def values(loss: float, clip: float) -> LossValues:
    reports = {"clip_frac": clip}
    ages = {0: {"tokens": 3.0, "clip_frac": clip}, 1: {"tokens": 1.0, "clip_frac": 2 * clip}}
    return LossValues(step=1, name="l", loss=loss, reports=reports, gradient=1.0, by_age=ages,
                      by_length={})  # fmt: skip


def step() -> Step:
    return Step(
        step=1, groups=2, kept_before=2, kept_after=1, before=(values(0.1, 0.2),),
        after=(values(0.2, 0.1),),
        completions=completions([(0.0, 0.5), (1.0, 1.0), (0.5, 0.5), (0.5, None)]),
    )  # fmt: skip


def test_scores_are_compared_where_both_exist() -> None:
    found = summarize([step()])
    (line,) = found.lines
    assert (line.name, line.count, line.changed) == ("score", 3, pytest.approx(1 / 3))
    assert line.mean == pytest.approx((0.5, 2 / 3))
    assert line.correlation == pytest.approx(0.8660254)
    assert found.only == (("reward short", "after", 1.0),)
    assert found.dead == (0.5, 0.5)
    assert [c.before for c in found.most] == [0.0]


def test_reports_by_age_are_weighted_by_tokens() -> None:
    tables = loss_tables(summarize([step(), step()]))
    assert tables["clip_frac by age"] == [
        ("age", "before", "after"), ("0", "0.200", "0.100"), ("1", "0.400", "0.200"),
    ]  # fmt: skip


def test_text_and_page_show_the_same_numbers_and_escape_texts() -> None:
    found = summarize([step()])
    text, html = render(found, "a with b"), page(found, "a with b")
    assert "groups in batches: 2 -> 1 of 2 recorded groups" in text
    assert "groups in batches: 2 -&gt; 1 of 2 recorded groups" in html
    assert "&lt;1 + 1&gt;" in html
    assert "<1 + 1>" not in html
    assert html.count("<svg") == 4


# ---- scores of completions whose rewards are unchanged


PROGRAM = """
def half(rollout): return 0.5
def short(rollout): return 1.0 - rollout.num_tokens / 10
def total(parts): return parts["r"] + parts["s"]
"""
KINDS = {
    "r": spec.Reward(kind="program", function="half"),
    "s": spec.Reward(kind="program", function="short"),
}
BOTH = spec.Rubric(function="total", rewards=("r", "s"), on_truncated=0.25)


def services(tmp_path: Path, program: str = PROGRAM, **rewards: spec.Reward) -> RecordedServices:
    """Services for one completion of three tokens, whose recorded rewards are 7 and 8."""
    rubrics = {"total": BOTH}
    run = job(rewards=KINDS, rubrics=rubrics, program=PROGRAM)
    new = job(rewards={**KINDS, **rewards}, rubrics=rubrics, program=program)
    made = RecordedServices(run, new, tmp_path, load_module("program", program))
    made.use([{"group": 1, "sibling": 0, "part/r": 7.0, "part/s": 8.0}])
    return made


def rollout(**more: Any) -> Rollout:
    return Rollout(
        group=1, sibling=0, prompt=Prompt(group=1, row=0, text="", token_ids=[1], target=None),
        token_ids=[1, 2, 3], logprobs=[0.0] * 3, mask=[True] * 3, text="abc",
        **({"truncated": False, "version_min": 0, "version_max": 0} | more),
        started=0.0, finished=0.0,
    )  # fmt: skip


def test_unchanged_rewards_keep_their_recorded_values(tmp_path: Path) -> None:
    score = services(tmp_path).score_at_once("total", rollout(), None)
    assert score is not None
    assert (score.value, score.parts) == (15.0, {"r": 7.0, "s": 8.0})


def test_a_changed_reward_is_computed(tmp_path: Path) -> None:
    changed = PROGRAM.replace("return 0.5", "return 0.75")
    score = services(tmp_path, changed).score_at_once("total", rollout(), None)
    assert score is not None
    assert (score.value, score.parts) == (8.75, {"r": 0.75, "s": 8.0})


def test_a_truncated_completion_has_the_score_of_the_rubric(tmp_path: Path) -> None:
    score = services(tmp_path).score_at_once("total", rollout(truncated=True), None)
    assert score is not None
    assert (score.value, score.parts) == (0.25, {})


def test_a_reward_that_fails_is_left_to_the_pools(tmp_path: Path) -> None:
    failing = PROGRAM.replace("return 0.5", "return 1 / 0")
    assert services(tmp_path, failing).score_at_once("total", rollout(), None) is None
    assert services(tmp_path).score_at_once("total", rollout(fixed=1.0), None) is None


def test_an_asynchronous_reward_is_awaited(tmp_path: Path) -> None:
    text = "import asyncio\nasync def slow(response):\n    await asyncio.sleep(0)\n    return 0.5\n"
    (tmp_path / "slow.py").write_text(text)
    reward = spec.Reward(
        kind="python", function="slow", path="slow.py", sha256=sha256(text.encode()).hexdigest(),
        inputs={"response": "response"}, concurrency=4,
    )  # fmt: skip
    made = services(tmp_path, r=reward)
    assert made.score_at_once("total", rollout(), None) is None
    node = next(node for node in job().nodes if node.op == "score")
    asked = made.score(node.model_copy(update={"target": "total"}), rollout(), None)
    score = asyncio.run(asked)
    assert score.parts == {"r": 0.5, "s": pytest.approx(0.7)}
