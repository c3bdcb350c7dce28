"""`buffer`, `put` and its `draw`: what the job says, what is refused, what is planned and drawn."""

from pathlib import Path

import pytest
from forge_texts import changed

import forgedsl.pipelines
from forgedsl.api import Host, load_text
from forgedsl.drawing.details import arrow_details
from forgedsl.ir.graph import EdgeKind
from forgedsl.lower.build import lower
from forgedsl.runs.topology import topology_svg

FOLDER = Path(forgedsl.pipelines.__file__).parent
TEXT = changed(
    (FOLDER / "rloo_math.forge").read_text(),
    ("flow train {", "buffer good { groups = 128, max_age = 16 }\n\nflow train {"),
    ("  batch   = replay(rollout, adv = rl.rloo(score))\n", """\
  adv     = rl.rloo(score)
  good.put(rollout, adv = adv, keep = rl.mixed(score))
  old     = good.draw(8)
  fresh   = replay(rollout, adv = adv)
  again   = replay(old, adv = old.adv)
"""),
    ("trainer.step(batch, loss = rl.rloo_loss)",
     "trainer.step(merge(fresh, again), loss = rl.dapo)"),
)  # fmt: skip


def lowered(*changes):
    made, found = checked(*changes)
    return made, [(d.code, d.message, d.help) for d in found]


def checked(*changes, host=None):
    loaded = load_text(changed(TEXT, *changes), "b.forge", folder=FOLDER)
    made = None
    if loaded.program is not None and not loaded.reporter.has_errors:
        made = lower(loaded.program, reporter=loaded.reporter, sources=loaded.sources,
                     base_dir=FOLDER, host=host)  # fmt: skip
    return made, [d for d in loaded.reporter if d.severity == "error"]


def test_the_job_has_the_buffer_its_put_and_its_draw():
    made, problems = lowered()
    assert problems == []
    assert made.job.buffers["good"].model_dump() == {"groups": 128, "max_age": 16}
    put, old = (n for n in made.job.nodes if n.op in ("put", "recall"))
    assert [i.argument for i in put.inputs] == ["rollout", "adv", "keep"]
    assert (put.target, old.target, old.count) == ("good", "good", 8)
    assert made.job.schedule.prompts == 64  # what is drawn again has no credit


def test_the_plan_counts_what_is_drawn_in_the_step_and_what_is_held_in_memory():
    made, _ = lowered()
    without, _ = lowered(("merge(fresh, again)", "fresh"))
    tokens = [next(s.tokens for s in each.plan.cost.stages if s.node == "step")
              for each in (made, without)]  # fmt: skip
    assert tokens[0] == tokens[1] * (64 + 8) // 64
    assert made.plan.request.held == {"good": 128 * 4 * 2048 * 9}
    assert "recall" not in [node.op for node in without.graph.nodes]
    assert "put" not in [node.op for node in without.graph.nodes]


def test_what_no_loss_reads_of_a_drawn_group_is_not_kept():
    made, problems = lowered(("adv = adv, keep", "adv = adv, score = score, keep"))
    assert problems == []
    put = next(n for n in made.job.nodes if n.op == "put")
    assert [i.argument for i in put.inputs] == ["rollout", "adv", "keep"]


def test_a_drawing_shows_the_cycle():
    made, _ = lowered()
    assert "weight sync and replay (the only cycles)" in made.job.topology
    assert "good ==> old    8 groups a step, of 128, age <= 16" in made.job.topology


def test_an_edge_has_the_age_of_what_it_carries():
    made, _ = lowered()
    ids = {node.name: node.id for node in made.graph.nodes}
    ages = {
        ends: dict(arrow_details(*(ids[e] for e in ends), EdgeKind.DATA, made.graph, made.plan))
        for ends in (("rollout", "fresh"), ("old", "again"), ("again", "step"))
    }
    assert [each["policy age"] for each in ages.values()] == [
        "0 to 0 steps", "1 to 16 steps", "1 to 16 steps"
    ]  # fmt: skip


def test_a_report_shows_what_goes_in_and_comes_back():
    made, _ = lowered()
    svg = topology_svg(made.job)
    assert ">good.put<" in svg
    assert ">good.draw<" in svg
    assert ">good: in later steps<" in svg


PUT = "  good.put(rollout, adv = adv, keep = rl.mixed(score))\n"
DRAW = "  old     = good.draw(8)\n"
STEP = "trainer.step(merge(fresh, again), loss = rl.dapo)"
AGAIN = "  again   = replay(old, adv = old.adv)\n"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([(PUT, "")], "F114", "`old` is drawn from `good`, but no groups are put there"),
        ([(DRAW, ""), (AGAIN, ""), ("merge(fresh, again)", "fresh")], "F119",
         "groups are put into `good`, but none are drawn from it"),
        ([(PUT, 2 * PUT)], "F102", "`good` is filled twice"),
        ([(DRAW, DRAW + "  more    = good.draw(4)\n")], "F102", "`good` is drawn from twice"),
        ([("good.draw(8)", "good.draw(256)")], "F113",
         "256 groups are drawn per step, but `good` can hold only 128"),
        ([("good.draw(8)", "good.draw(8, weight = rl.frontier)")], "F114",
         "`good.draw` has no parameter `weight`"),
        ([("good.draw(8)", "good.take(8)")], "F101", "buffer `good` has no method `take`"),
        ([("good.draw(8)", "good.draw()")], "F114", "`good.draw` needs its count"),
        ([("good.put(", "was = good.put(")], "F119", "`put` has no result"),
        ([("good.put(rollout, ", "good.put(")], "F114", "`good.put` needs its rollout"),
        ([("good.put(rollout, adv = adv,", "good.put(rollout, adv,")], "F114",
         "the second value of `good.put` needs a name"),
        ([("max_age = 16", "max_age = 1"), ("draw(8)", "draw(65)")], "F113",
         "65 groups are drawn per step, but `good` has at most 64 groups within `max_age`"),
        ([("put(rollout, adv = adv", "put(rollout, adv = rollout.response")], "T703",
         "`good.put` reads numbers; `rollout.response` carries text"),
        ([("fresh   = replay(rollout, adv = adv", "fresh   = replay(rollout, adv = rollout.mask")],
         "T701", "`adv` is declared [B], but `rollout.mask` is [B, T]"),
        ([("good.put(rollout", "good.put(score")], "T703", "`good.put` reads rollouts"),
        ([("keep = rl.mixed(score)", "keep = score")], "T703",
         "`good.put` reads the decisions of a filter; `score` carries scores"),
        ([("keep = rl.mixed(score)", "keep = true")], "F109",
         "`keep` is a stream, not a constant"),
        ([("put(rollout, adv = adv", "put(rollout, mask = adv")], "F114",
         "`mask` is stored with every rollout"),
        ([("adv = old.adv", "adv = old.advantage")], "F101",
         "rollouts have no attribute `advantage`"),
        ([("adv = old.adv", "adv = old.response")], "F101",
         "rollouts have no attribute `response`"),
        ([("put(rollout, adv = adv", "put(rollout, adv = prompt")], "T703",
         "`good.put` reads numbers; `prompt` carries prompts"),
        ([("adv = old.adv", "adv = adv")], "F112", "`old` and `adv` cannot be joined"),
        ([("merge(fresh, again)", "again")], "F130",
         "the first loss of a step needs samples"),
        ([(STEP, "trainer.step(again, loss = rl.dapo, fresh, loss = rl.rloo_loss)")], "F130",
         "the first loss of a step needs samples"),
        ([(PUT, PUT.replace("adv = adv", "adv = trainer.logprobs(rollout)"))], "F130",
         "`adv` would be computed with the weights of the step"),
        ([(AGAIN, "  kept    = old.keep(rl.mixed(old.adv))\n"
           "  again   = replay(kept, adv = old.adv)\n")], "F130", "`old` was drawn from a buffer"),
        ([(AGAIN, "  told    = correct(old, old.adv)\n" + AGAIN)], "F130",
         "`old` was drawn from a buffer, so it cannot be scored again"),
        ([(DRAW, DRAW + "  other.put(old)\n"), ("buffer good", "buffer other { groups = 8, "
           "max_age = 4 }\nbuffer good"), (AGAIN, AGAIN + "  third   = other.draw(2)\n")], "F105",
         "groups drawn from `good` cannot be put into a buffer again"),
        ([(", max_age = 16", "")], "F110", "buffer `good` has no `max_age`"),
        ([("groups = 128", "size = 128")], "F103", ""),
        ([("schedule sync { steps = 250 }", "schedule async { steps = 250, max_policy_age = 2 }"),
          ("max_age = 16", "max_age = 2")], "A302", "groups may already be 3 steps old"),
    ],
)  # fmt: skip
def test_mistakes_have_their_message(changes, code, message):
    _, problems = lowered(*changes)
    ((found, text, help),) = problems
    assert (found, text[: len(message)]) == (code, message)
    assert help


@pytest.mark.parametrize(
    ("changes", "help"),
    [
        ([("adv = old.adv", "adv = adv")], "store it with them, `adv = adv`, and read `old.adv`"),
        ([("old, adv = old.adv", "old")],
         "add it: `replay(..., adv = old.adv)`, stored with `put(..., adv"),
        ([("rl.dapo)", "rl.tis_ppo)"), ("fresh   = replay(rollout",
          "fresh   = replay(rollout, proximal = trainer.logprobs(rollout)")],
         "add it: `replay(..., proximal = trainer.logprobs(old))`"),
        ([("old.adv", "rl.rloo(old.score)")],
         "they have `adv`, `num_tokens`, `truncated`, `mask`; to store more, write `score = ...`"),
        ([("good.put(rollout, ", "good.put(")], "`good.put(rollout, adv = adv)`"),
    ],
)  # fmt: skip
def test_a_remedy_is_about_what_was_drawn(changes, help):
    _, ((*_, said),) = lowered(*changes)
    assert said.startswith(help)


def test_minibatches_are_of_what_is_drawn_by_all():
    _, (found,) = checked(("rl.dapo)", "rl.dapo, minibatches = 5)"))
    assert found.message == "`minibatches = 5` does not divide the 72 prompts of a batch"
    assert [label.text for label in found.related] == [
        "64 prompts are drawn here", "8 prompts are drawn here"
    ]  # fmt: skip


HOST = Host(memory=256 << 30)


def test_a_buffer_that_does_not_fit_is_what_its_message_is_about():
    _, (found,) = checked(
        ("groups = 128, max_age = 16", "groups = 9000000, max_age = 9000000"), host=HOST
    )
    fitting = int(found.help.removeprefix("`good.groups = ").removesuffix("` fits"))
    made, _ = checked(
        ("groups = 128, max_age = 16", f"groups = {fitting}, max_age = 9000000"), host=HOST
    )
    assert made is not None
    assert found.span.file == "b.forge"


def test_a_buffer_takes_no_more_than_what_is_put_before_it_is_too_old():
    made, _ = checked(("groups = 128, max_age = 16", "groups = 9000000, max_age = 16"), host=HOST)
    assert made.plan.request.held == {"good": 64 * 17 * 4 * 2048 * 9}
