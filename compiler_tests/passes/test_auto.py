"""`auto` for placements: what is chosen, shown, locked and resumed with; what it may not choose."""

import json
from itertools import islice
from types import SimpleNamespace

import pytest
from forge_commands import CliRunner
from forge_texts import GRPO, SFT, changed, lower_of, plan_of, text_at

from forgedsl.api import load_text
from forgedsl.cli.app import app
from forgedsl.cli.resuming import differences
from forgedsl.cli.run import prepare
from forgedsl.cli.running import RunOptions
from forgedsl.lower.lock import choices, lock_text
from forgedsl.plan import plan as plan_module
from forgedsl.plan import search
from forgedsl.records import replace
from forgedsl.sizes.hosts import Host

OPEN = changed(
    GRPO,
    ("procs = 4, optimizer.lr = 1e-6, batch { seq_len = 4096, rows = 4 }",
     "procs = auto, parallel.tp = auto, batch { seq_len = 4096, rows = auto }\n"
     "  memory.activation_checkpoint = auto"),
    ("replicas = 2, parallel.tp = 2", "replicas = auto, parallel.tp = auto"),
    ("{ device = cpu, procs = 2 }", "{ procs = trainer.procs }\ncolocate = auto"),
)  # fmt: skip
TINY = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = row.question, target = row.answer
}
service trainer : titan(policy) { device = cpu, batch { seq_len = 64, rows = auto } }
service generator : vllm(policy) { device = cpu, replicas = auto, sampling.max_tokens = 16 }
reward correct = rl.math_equal(tolerance = 1e-6)
flow train {
  prompt  = sums.draw(8)
  rollout = generator.sample(prompt, n = 4)
  score   = correct(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 5, max_policy_age = 1 }
"""


def codes(diagnostics):
    return [d.code for d in diagnostics if d.severity == "error"]


def request(file, **given):
    return RunOptions(file=file, overrides=(), profile="auto", run_dir=None, resume=None,
                      quiet=True, **given)  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.forge"
    path.write_text(TINY)
    return path


@pytest.mark.parametrize(("gpus", "busier"), [(2, "generator"), (3, "trainer"), (8, "trainer")])
def test_the_plan_fits_what_is_left_open_to_the_host(gpus, busier):
    plan, diagnostics = plan_of(OPEN, host=Host(gpus=gpus))
    assert codes(diagnostics) == []
    used = {gpu for m in plan.meshes for p in m.places for gpu in p.gpus}
    assert "reference" in plan.colocate
    assert busier not in plan.colocate
    assert used == set(range(gpus))


def test_what_is_written_is_not_chosen():
    plan, _ = plan_of(OPEN, "generator.replicas=1", "trainer.batch.rows=2")
    assert plan.mesh("generator").replicas == 1
    assert plan.rows["trainer"].rows == 2
    assert {"generator.replicas", "trainer.batch.rows"}.isdisjoint(plan.chosen)


def test_choices_written_out_give_the_same_plan(tmp_path):
    auto, _ = lower_of(OPEN, folder=tmp_path)
    written, _ = lower_of(OPEN, *choices(auto.job.chosen), folder=tmp_path)
    assert len(auto.job.chosen) == 8
    assert differences(auto.job, written.job) == []
    assert written.plan.cost == auto.plan.cost


@pytest.mark.parametrize(
    ("longer", "starving", "taken"),
    [(1.009, {0}, 1), (1.011, {0}, 0), (1.0, {0, 1}, 0), (1.0, {}, 0)],
)
def test_a_starved_engine_is_avoided_if_a_step_takes_about_as_long(
    longer, starving, taken, monkeypatch
):
    """Of two placements, the second takes `longer` times as long; `starving` ones have P211."""
    really, found = search.search, []

    def two(*given):
        first, other = islice(really(*given), 2)
        found[:] = first, replace(other, key=(longer * first.key[0], *other.key[1:]))
        return iter(found)

    def warnings(program, graph, made):
        place = next(i for i, each in enumerate(found) if each.program is program)
        return [SimpleNamespace(code="P211" if place in starving else "A307")]

    monkeypatch.setattr(search, "search", two)
    monkeypatch.setattr(plan_module, "advice", warnings)
    made, _ = plan_of(OPEN, host=Host(gpus=8))
    assert found[0].request.meshes != found[1].request.meshes
    assert made.meshes == found[taken].request.meshes


def test_a_small_gpu_gets_recomputation_and_fewer_rows():
    small = changed(OPEN, ("1.7B", "0.6B"))
    large, little = (plan_of(small, host=Host(gpus=2, gpu_memory=size << 30))[0]
                     for size in (141, 24))  # fmt: skip
    key = "trainer.memory.activation_checkpoint"
    assert [large.chosen[key], little.chosen[key]] == ["none", "full"]
    assert little.rows["trainer"].rows < large.rows["trainer"].rows


def test_what_does_not_fit_in_any_way_is_said_of_the_smallest():
    assert codes(plan_of(OPEN, host=Host(gpus=1))[1]) == ["P203"]
    turns = changed(OPEN, ("async { steps = 500, max_policy_age = 1 }", "sync { steps = 5 }"))
    assert codes(plan_of(turns, host=Host(gpus=1, gpu_memory=8 << 30))[1]) == ["P205"]


def test_the_size_of_a_batch_is_not_chosen():
    text = changed(SFT, ("procs = 8", "procs = auto"))
    plan, diagnostics = plan_of(text)
    assert plan is None
    assert codes(diagnostics) == ["F113"]
    assert text_at(text, diagnostics[0]) == "auto"
    assert "rows of `batches()`" in diagnostics[0].message


def test_recomputation_is_chosen_for_a_step_over_batches():
    text = changed(SFT, ("checkpoint = full", "checkpoint = auto"), ("8B", "1.7B"))
    plan, _ = plan_of(text)
    assert plan.chosen == {"trainer.memory.activation_checkpoint": "selective"}


def test_nothing_is_chosen_for_a_model_of_unknown_size():
    text = changed(OPEN, ('hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B")', 'hf("a/b")'))
    plan, diagnostics = plan_of(text)
    assert plan is None
    assert [d.help for d in diagnostics] == ["set the model's `arch`, or write numbers for `auto`"]


def test_plan_says_what_it_chose(file):
    arguments = ["plan", str(file), "--host", "cpu"]
    page = CliRunner().invoke(app, arguments).stdout
    assert "chosen by the plan: trainer.batch.rows = 32, generator.replicas = 1" in page
    document = json.loads(CliRunner().invoke(app, [*arguments, "--format", "json"]).stdout)
    assert document["chosen"] == document["job"]["chosen"]


def test_a_lock_holds_what_was_chosen(file, tmp_path):
    made, _ = lower_of(TINY, folder=tmp_path)
    lock = tmp_path / "other.lock"
    elsewhere = made.job.model_copy(update={"chosen": {"generator.replicas": "2"}})
    lock.write_text(lock_text(elsewhere))
    held = prepare(request(file, lock=lock), file)
    assert held.job.services["generator"].mesh.replicas == 2
    assert held.job.chosen == {"trainer.batch.rows": "32"}


def test_a_resume_from_the_file_takes_what_the_run_chose(file):
    chosen = ("generator.replicas=2", "trainer.batch.rows=7")
    old, now, again = (prepare(request(file), file, c).job for c in (chosen, (), chosen))
    assert [d.setting for d in differences(old, now)] != []
    assert differences(old, again) == []


def test_a_slip_for_auto_is_told_what_may_stand_there():
    numbers = load_text(TINY, "test.forge", overrides=["trainer.procs=atuo"]).reporter
    words = load_text(TINY, "test.forge", overrides=["trainer.memory.activation_checkpoint=x"])
    assert [d.message for d in (*numbers, *words.reporter)] == [
        "`procs` must be an integer or `auto`, not `atuo`",
        "`memory.activation_checkpoint` must be one of `none`, `selective`, `full`, `auto`, not "
        "`x`",
    ]


def test_hosts_that_nothing_reaches_are_left_out():
    one, four = (plan_of(OPEN, host=Host(gpus=8, hosts=hosts))[0] for hosts in (1, 4))
    assert four.chosen == one.chosen


@pytest.mark.parametrize("written", ["parallel { pp = auto }", "parallel.dp_replicate = auto"])
def test_what_is_not_worked_out_says_so(written):
    text = changed(TINY, ("device = cpu, batch", f"device = cpu, {written}, batch"))
    (found,) = [d for d in load_text(text).reporter if d.severity == "error"]
    assert (found.code, text_at(text, found)) == ("F109", "auto")
    assert found.help == "write a value: the plan does not choose this one"
