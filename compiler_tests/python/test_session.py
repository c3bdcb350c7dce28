"""A Session: the verbs of a loop of one's own, on real meshes."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import forgedsl
from forgedsl import PipelineError, compile_loss
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.resuming import load_run_job
from forgedsl.errors import LaunchError, RunError
from forgedsl.python.groups import Buffer, Group, assembled
from forgedsl.python.session import Session
from forgedsl.python.work import Work
from forgedsl_runtime import meshes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "grpo_by_hand.py"
SUMS = re.search(r"```forge sums.forge\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
assert SUMS is not None
TEXT = SUMS[1]
# SGD: Adam would blow a difference of rounding up to a whole step
PLAIN = ("trainer.optimizer.kind=sgd", "trainer.optimizer.lr=0.1", "trainer.batch.rows=16",
         "schedule.steps=2", "trainer.optimizer.decay=linear")  # fmt: skip


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: Any) -> forgedsl.Pipeline:
    file = tmp_path_factory.mktemp("file") / "sums.forge"
    file.write_text(TEXT, encoding="utf-8")
    return forgedsl.load(file, set=PLAIN)


@pytest.fixture(scope="module")
def s(pipeline: forgedsl.Pipeline, tmp_path_factory: Any) -> Iterator[Session]:
    with pipeline.session(tmp_path_factory.mktemp("session") / "run") as opened:
        yield opened


@pytest.fixture(scope="module")
def groups(pipeline: forgedsl.Pipeline, s: Session) -> list[Group]:
    """Four groups of four, scored; none of them is all alike."""
    found = s["generator"].sample(s["sums"].draw(4), n=4, seed=3).result()
    for number, group in enumerate(found):
        group.scores = s["grade"].score(group).result()
        group.adv = pipeline.function("group_norm")([0.0, 1.0, float(number), 0.5])
    return found


def export(s: Session, folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(s["trainer"].export(folder).result() / "model.safetensors")


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_passes_with_counts_and_an_optim_step_are_one_step(
    s: Session, groups: list[Group], tmp_path: Path
) -> None:
    trainer = s["trainer"]
    trainer.save_state("before").result()
    start = export(s, tmp_path / "start")
    whole = trainer.step(s.batch(groups, adv="adv"), "clipped").result()
    stepped = export(s, tmp_path / "step")
    trainer.load_state("before").result()
    assert apart(start, export(s, tmp_path / "again")) == 0.0
    halves = [s.batch(groups[:1], adv="adv"), s.batch(groups[1:], adv="adv")]
    counts = trainer.counts(halves, "clipped").result()
    passes = [trainer.forward_backward(half, "clipped", counts=counts) for half in halves]
    done = trainer.optim_step().result()
    assert sum(each.result().loss for each in passes) == pytest.approx(whole.loss, abs=1e-6)
    assert done.loss == pytest.approx(whole.loss, abs=1e-6)
    assert done.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert done.metrics == pytest.approx(whole.metrics, abs=1e-5)
    assert done.tokens == whole.tokens
    assert apart(stepped, export(s, tmp_path / "halves")) < 1e-6
    assert apart(start, stepped) > 1e-5
    trainer.load_state("before").result()


def test_without_counts_each_pass_weighs_alike(
    s: Session, groups: list[Group], tmp_path: Path
) -> None:
    trainer = s["trainer"]
    halves = [s.batch(groups[:1], adv="adv"), s.batch(groups[1:], adv="adv")]
    for half in halves:
        trainer.forward_backward(half, "clipped")
    apart_from = trainer.optim_step().result()
    trainer.load_state("before").result()
    whole = trainer.step(s.batch(groups, adv="adv"), "clipped").result()
    assert abs(apart_from.grad_norm - whole.grad_norm) > 1e-4
    trainer.load_state("before").result()


def test_a_learning_rate_of_zero_moves_nothing_and_counts(s: Session, groups: list[Group]) -> None:
    trainer = s["trainer"]
    trainer.forward_backward(s.batch(groups, adv="adv"), "clipped")
    done = trainer.optim_step(lr=0.0).result()
    assert (done.lr, done.version) == (0.0, trainer.version)
    assert done.grad_norm > 0
    trainer.load_state("before").result()


def test_after_the_last_step_of_the_schedule_its_rate_stays(
    s: Session, groups: list[Group]
) -> None:
    trainer = s["trainer"]
    rates = []
    for _ in range(4):
        trainer.forward_backward(s.batch(groups, adv="adv"), "clipped")
        rates.append(trainer.optim_step().result().lr)
    assert rates[2] == rates[3] > 0
    trainer.save_state("late").result()
    trainer.load_state("late").result()
    trainer.load_state("before").result()


def test_a_seed_is_a_number(s: Session) -> None:
    with pytest.raises(
        PipelineError, match=r"^`seed` must be a whole number of at least 0, not 'x'"
    ):
        s["generator"].sample(s["sums"].draw(1), seed="x")


def test_a_session_and_a_batch_are_shown(s: Session, groups: list[Group]) -> None:
    html = s._repr_html_()
    assert f"Trainer of policy on cpu, version {s['trainer'].version}: " in html
    assert ": open" in html
    assert re.match(r"<Batch of 16 samples: \d+ tokens, ", repr(s.batch(groups, adv="adv")))
    assert "logprobs" not in repr(s["trainer"].step(s.batch(groups, adv="adv"), "clipped").result())
    s["trainer"].load_state("before").result()


def test_order_of_calls_is_asked_for(s: Session, groups: list[Group]) -> None:
    trainer = s["trainer"]
    with pytest.raises(PipelineError, match=r"^there are no gradients: call forward_backward fi"):
        trainer.optim_step().result()
    trainer.forward_backward(s.batch(groups, adv="adv"), "clipped")
    with pytest.raises(RunError, match="call optim_step before step"):
        trainer.step(s.batch(groups, adv="adv"), "clipped").result()
    trainer.load_state("before").result()


def test_a_sample_that_is_too_long_is_refused_before_the_trainer_is_asked(
    s: Session, groups: list[Group]
) -> None:
    trainer, seq_len = s["trainer"], s.job.trainers["trainer"].batch.seq_len
    batch = s.batch(groups, adv="adv")
    short = batch.samples[0].token_ids
    batch.samples[0].token_ids = [*short, *[1] * seq_len]
    told = rf"1 of 16 samples do not fit batch.seq_len = {seq_len}: .*max_tokens="
    for call in (trainer.forward_backward, trainer.step):
        with pytest.raises(PipelineError, match=told):
            call(batch, "clipped")
    with pytest.raises(PipelineError, match=r"^there are no gradients"):
        trainer.optim_step().result()
    rollout = groups[0].rollouts[0]
    long = Group(prompt=groups[0].prompt, rollouts=[replace(rollout, token_ids=[1] * seq_len)])
    with pytest.raises(PipelineError, match=r"^1 of 1 samples do not fit"):
        s.batch([long])
    assert long.responses == [rollout.text]


def test_a_failed_pass_leaves_no_gradients(s: Session, groups: list[Group]) -> None:
    trainer, batch = s["trainer"], s.batch(groups, adv="adv")
    for sample in batch.samples:
        sample.token_fields["behavior"] = []
    with pytest.raises(RunError):
        trainer.forward_backward(batch, "clipped").result()
    with pytest.raises(PipelineError, match=r"^there are no gradients"):
        trainer.optim_step().result()
    trainer.step(s.batch(groups, adv="adv"), "clipped").result()
    trainer.load_state("before").result()


def test_a_failed_pass_discards_those_before_it(s: Session, groups: list[Group]) -> None:
    trainer, batch = s["trainer"], s.batch(groups, adv="adv")
    trainer.forward_backward(s.batch(groups, adv="adv"), "clipped").result()
    for sample in batch.samples:
        sample.token_fields["behavior"] = []
    told = r"ValueError: `behavior` has 0 values.*; the gradients of this update were discarded: re"
    with pytest.raises(RunError, match=told):
        trainer.forward_backward(batch, "clipped").result()
    with pytest.raises(PipelineError, match=r"^there are no gradients"):
        trainer.optim_step().result()
    trainer.step(s.batch(groups, adv="adv"), "clipped").result()
    trainer.load_state("before").result()


def test_a_loss_of_ones_own_is_sent_to_the_trainer(s: Session, groups: list[Group]) -> None:
    trainer = s["trainer"]
    mine = compile_loss("grpo", params={"beta": 0.0})
    batch = s.batch(groups, adv="adv")
    first = trainer.forward_backward(batch, mine).result()
    assert abs(first.loss) < 1.0
    assert first.tokens > 0
    trainer.load_state("before").result()


def test_logprobs_are_the_samplers(s: Session, groups: list[Group]) -> None:
    found = s["trainer"].logprobs(groups[0]).result()
    assert found[0] == pytest.approx(groups[0].rollouts[0].logprobs, abs=1e-3)


def test_a_sync_brings_the_version_to_the_samples(s: Session, groups: list[Group]) -> None:
    trainer, policy = s["trainer"], s["generator"]
    trainer.step(s.batch(groups, adv="adv"), "clipped")
    version = s.sync(trainer, policy).result()
    (group,) = policy.sample(s["sums"].draw(1)[0], n=2).result()
    assert group.version == version == trainer.version > 0
    buffer = s.buffer(groups=2, max_age=0)
    buffer.put([*groups, group])
    assert buffer.draw(5, version) == [group]


def test_scores_keep_the_parts_of_a_rubric(groups: list[Group]) -> None:
    assert set(groups[0].parts) == {"correct", "short"}
    assert len(groups[0].scores) == len(groups[0]) == 4


def test_a_chat_is_answered(s: Session) -> None:
    assert isinstance(s["generator"].chat("12+3=", max_tokens=4).result(), str)


def test_a_wait_ends_in_time_and_the_call_goes_on(s: Session) -> None:
    work = s["generator"].sample(s["sums"].draw(4), n=4)
    with pytest.raises(TimeoutError, match="the call has not ended after 0 s; it goes on"):
        work.result(timeout=0.0)
    assert [len(group) for group in work.result()] == [4] * 4
    assert repr(work) == "<Work: done; result() waits for it>"


def test_a_chat_without_text_is_refused(s: Session) -> None:
    for nothing in ("", [], [{"role": "user", "content": ""}]):
        with pytest.raises(forgedsl.PipelineError, match="`messages` have no text"):
            s["generator"].chat(nothing)


def test_it_works_inside_a_running_loop(s: Session) -> None:
    async def cell() -> int:
        asked = [s["generator"].sample(prompt, n=2) for prompt in s["sums"].draw(2)]
        return sum([len(await work) for work in asked])

    assert asyncio.run(cell()) == 2


def test_mistakes_are_told(s: Session, groups: list[Group]) -> None:
    with pytest.raises(forgedsl.PipelineError, match="no `trainr`; did you mean `trainer`"):
        s["trainr"]
    with pytest.raises(forgedsl.PipelineError, match="no loss `clip`; it has clipped"):
        s["trainer"].forward_backward(s.batch(groups, adv="adv"), "clip").result()
    with pytest.raises(forgedsl.PipelineError, match="sampling has no `heat`"):
        s["generator"].sample(s["sums"].draw(1), heat=2.0)
    with pytest.raises(forgedsl.PipelineError, match="max_tokens"):
        s["generator"].sample(s["sums"].draw(1), max_tokens="many")
    asked = s["sums"].draw(1)
    for wrong, told in (
        ({"temperature": -1}, "`temperature` must be at least 0, not -1"),
        ({"top_p": 0.0}, "`top_p` must be more than 0"),
        ({"n": 0}, "`n` must be a whole number of at least 1, not 0"),
        ({"n": "a"}, "`n` must be a whole number of at least 1, not 'a'"),
    ):
        with pytest.raises(forgedsl.PipelineError, match=told):
            s["generator"].sample(asked, **wrong)
    for few in (["12 + 30 ="], "12 + 30 ="):
        with pytest.raises(forgedsl.PipelineError, match="must be prompts of a dataset, such as"):
            s["generator"].sample(few)
    with pytest.raises(forgedsl.PipelineError, match="`count` must be a whole number"):
        s["sums"].draw(-1)
    with pytest.raises(forgedsl.PipelineError, match="`lr` must be a number of at least 0, not -1"):
        s["trainer"].optim_step(lr=-1)
    with pytest.raises(forgedsl.PipelineError, match="`step` must be a whole number"):
        s.log(step="a", reward=1.0)
    with pytest.raises(forgedsl.PipelineError, match="metric `reward` must be a number"):
        s.log(step=1, reward="high")
    with pytest.raises(forgedsl.PipelineError, match="no state `there` was saved"):
        s["trainer"].load_state("there")
    with pytest.raises(forgedsl.PipelineError, match=r"no `sums.batches\(\)`"):
        s["sums"].batch()
    with pytest.raises(forgedsl.PipelineError, match="already open"):
        s.open()


def test_a_batch_without_a_field_of_the_loss_is_told(s: Session, groups: list[Group]) -> None:
    trainer, bare = s["trainer"], s.batch(groups)
    told = r"the batch has no `adv` \[B\], which loss `clipped` reads: set it on each group, and"
    for call in (trainer.forward_backward, trainer.step):
        with pytest.raises(forgedsl.PipelineError, match=told):
            call(bare, "clipped")
    with pytest.raises(forgedsl.PipelineError, match=told):
        trainer.counts([bare], "clipped")
    for group in groups:
        group.by_token = [[0.0] * len(rollout.mask) for rollout in group.rollouts]
    with pytest.raises(forgedsl.PipelineError, match="one number for each completion, and the bat"):
        trainer.step(s.batch(groups, adv="by_token"), "clipped")


def test_arguments_of_a_trainer_are_checked(s: Session, groups: list[Group]) -> None:
    trainer, batch = s["trainer"], s.batch(groups, adv="adv")
    for call, told in (
        (lambda: trainer.step(groups, "clipped"), r"`batch` must be a batch, such as s\.batch"),
        (lambda: trainer.step(batch, 5), "`loss` must be a name of the file, or a LossFunction"),
        (lambda: trainer.step(batch, "clipped", epochs=0), "`epochs` must be a whole number"),
        (lambda: trainer.forward_backward(batch, "clipped", counts=[1]), "`counts` must be what"),
        (
            lambda: trainer.forward_backward(batch, "clipped", counts={"x": 1}),
            "`counts` must be wh",
        ),
        (lambda: trainer.export(ROOT / "README.md"), "README.md is a file: name a folder"),
        (lambda: trainer.save_state(5), "`name` of a state must be a text, not 5"),
        (lambda: s.save("a", x=object()), "`x` cannot be saved: Object of type object"),
        (lambda: s.sync("trainer", "generator"), r"`trainer` must be a trainer of the Session, su"),
        (lambda: s[5], "the name of a service, dataset, rubric or reward is a text, not 5"),
        (lambda: s.buffer(groups="a", max_age=1), "`groups` must be a whole number of at least 1"),
        (lambda: s["generator"].chat([{"role": "user"}]), "`messages` must be a text, or messages"),
        (lambda: s["generator"].chat(None), "`messages` must be a text, or messages"),
        (lambda: trainer.counts(batch, "clipped"), "`batches` must be a list of batches"),
        (lambda: trainer.logprobs(groups), "`group` must be one group, as `sample` returns"),
        (lambda: s["grade"].score(groups), "`group` must be one group"),
    ):
        with pytest.raises(forgedsl.PipelineError, match=told):
            call()


def test_the_folder_is_of_a_session(s: Session) -> None:
    import numpy as np
    import torch

    s.log(step=1, reward_mean=0.5, loss=0.25)
    s.log(step=2, a=np.float32(1), b=torch.tensor(0.5), c=np.int64(3))
    for wrong in (torch.zeros(1), np.str_("high"), np.complex64(1)):
        with pytest.raises(PipelineError, match="metric `a` must be a number"):
            s.log(step=3, a=wrong)
    last = json.loads((s.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["a"], last["b"], last["c"]) == (1.0, 0.5, 3)
    s.save("mine", note="by hand")
    assert s.load("mine") == {"note": "by hand"}
    assert set(json.loads((s.folder / "session.json").read_text())) >= {"before", "mine"}
    row = json.loads((s.folder / "metrics.jsonl").read_text().splitlines()[-2])
    assert (row["step"], row["reward_mean"]) == (1, 0.5)
    with pytest.raises(UsageError, match="of use only to the Session that saved them"):
        load_run_job(s.folder)


@pytest.mark.full
def test_the_end_of_with_waits_for_a_step_that_nobody_asked(
    pipeline: forgedsl.Pipeline, groups: list[Group], tmp_path: Path
) -> None:
    with pipeline.session(tmp_path / "run") as other:
        trainer = other["trainer"]
        trainer.forward_backward(other.batch(groups, adv="adv"), "clipped")
        trainer.optim_step()
    assert trainer.version == 1
    (end,) = [line for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()
              if "run.end" in line]  # fmt: skip
    assert json.loads(end)["status"] == "done"


def test_the_folder_of_a_session_is_taken(pipeline: forgedsl.Pipeline, tmp_path: Path) -> None:
    (tmp_path / "session.json").touch()
    with pytest.raises(forgedsl.PipelineError, match="contains a Session of Python; name another"):
        pipeline.session(tmp_path)


# ---- without services


def test_a_call_that_a_closed_session_has_cancelled() -> None:
    future: Future[int] = Future()
    future.cancel()
    with pytest.raises(RunError, match="the Session was closed before this call had ended, and"):
        Work(future).result()


def test_a_session_that_is_not_open(pipeline: forgedsl.Pipeline, tmp_path: Path) -> None:
    closed = pipeline.session(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert str(tmp_path / "run") in repr(closed)
    with pytest.raises(forgedsl.PipelineError, match="made when it opens"):
        closed.folder  # noqa: B018
    with pytest.raises(forgedsl.PipelineError, match="not open"):
        closed["sums"].draw(1)
    closed.close()


@pytest.mark.timeout(120)
def test_a_start_that_fails_ends_its_processes(
    pipeline: forgedsl.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(psutil.Process().children(recursive=True))
    started: set[psutil.Process] = set()

    def find_models(*_: object) -> None:
        started.update(set(psutil.Process().children(recursive=True)) - before)
        raise LaunchError("no such model")

    monkeypatch.setattr(meshes, "find_models", find_models)
    with pytest.raises(LaunchError, match="no such model"):
        pipeline.session(tmp_path / "run").open()
    assert len(started) >= 3  # trainer, engine, rewards
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive


def test_a_batch_needs_a_value_for_each_completion(groups: list[Group]) -> None:
    import torch

    group = Group(prompt=groups[0].prompt, rollouts=groups[0].rollouts)
    with pytest.raises(forgedsl.PipelineError, match="a group has no values `adv`"):
        assembled([group], {"adv": "adv"})
    group.adv = [1.0]
    with pytest.raises(forgedsl.PipelineError, match="one value for each of its 4"):
        assembled([group], {"adv": "adv"})
    for wrong in (["a"] * 4, [None] * 4, [["a"]] * 4):
        group.adv = wrong
        with pytest.raises(forgedsl.PipelineError, match="`adv` of a group must be numbers, not"):
            assembled([group], {"adv": "adv"})
    for few in (group, [1], 5):
        with pytest.raises(forgedsl.PipelineError, match="`groups` must be a list of groups"):
            assembled(few, {})
    group.adv = torch.arange(4.0)
    batch = assembled([group], {"adv": "adv"})
    assert [sample.sequence_fields["adv"] for sample in batch.samples] == [0.0, 1.0, 2.0, 3.0]
    group.adv = [[1.0]] * 4
    with pytest.raises(forgedsl.PipelineError, match="has 1 values, but the completion has"):
        assembled([group], {"adv": "adv"})
    with pytest.raises(forgedsl.PipelineError, match="there are none"):
        assembled([], {})


def test_a_buffer_forgets_the_oldest(groups: list[Group]) -> None:
    buffer = Buffer(2, 10, seed=1)
    buffer.put(groups)
    assert len(buffer) == 2
    assert sorted(map(id, buffer.draw(5, 0))) == sorted(map(id, groups[-2:]))


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_example_reaches_the_reward_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sums.forge"
    file.write_text(TEXT, encoding="utf-8")
    steps = 40
    whole = forgedsl.load(file, set=[f"schedule.steps={steps}"])
    by_file = [row["reward_mean"] for row in whole.run(tmp_path / "file", quiet=True).metrics()]
    train = runpy.run_path(str(EXAMPLE))["train"]
    by_hand = train(whole, tmp_path / "hand", steps)
    assert sum(by_hand[-10:]) / 10 > sum(by_hand[:5]) / 5 + 0.1
    assert sum(by_hand[-10:]) / 10 == pytest.approx(sum(by_file[-10:]) / 10, abs=0.1)


def test_values_of_a_batch_are_named(groups: list[Group]) -> None:
    group = Group(prompt=groups[0].prompt, rollouts=groups[0].rollouts)
    with pytest.raises(forgedsl.PipelineError, match=r"set `group.NAME = \[...\]` on each group"):
        assembled([group], {"adv": [1.0]})  # type: ignore[dict-item]


def test_a_session_says_where_its_services_are(pipeline: forgedsl.Pipeline, tmp_path: Path) -> None:
    session = pipeline.session(tmp_path / "run")
    with pytest.raises(AttributeError, match=r'no attribute `trainer`: write s\["trainer"\]'):
        session.trainer  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute `nothing`$"):
        session.nothing  # noqa: B018
    session.close()
    with pytest.raises(forgedsl.PipelineError, match="this Session is closed"):
        session["sums"].draw(1)


def test_a_generator_plays_by_sample(pipeline: forgedsl.Pipeline, tmp_path: Path) -> None:
    session = pipeline.session(tmp_path / "run")
    with pytest.raises(
        AttributeError, match="no `play`: `sample` plays, where the flow has `play`"
    ):
        session["generator"].play  # noqa: B018
    session.close()
