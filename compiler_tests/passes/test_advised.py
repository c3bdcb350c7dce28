"""Settings that plans advise: the compiler accepts each of them."""

import re
from pathlib import Path

import pytest
from forge_commands import CliRunner
from forge_texts import GRPO, SFT, changed, graph_of, plan_of

import forgedsl.pipelines
from forgedsl.cli.app import app
from forgedsl.cli.host import host_of
from forgedsl.plan.advised import with_larger_microbatches

FOLDER = Path(forgedsl.pipelines.__file__).parent
SHIPPED = sorted(p.name for p in FOLDER.glob("*.forge") if "schedule async" in p.read_text())
OLD = """forge 1
import "std/rl" as rl
model policy { source = hf("Qwen/Qwen3-0.6B"), arch = qwen3("0.6B"), context = 2048 }
dataset sums {
  source = hf("a/b", split = "train")
  prompt = row.question, target = row.answer, max_prompt_tokens = 256
}
service trainer : titan(policy) { batch { seq_len = 1280, rows = 8 } }
service generator : vllm(policy) { sampling.max_tokens = 1024 }
reward correct = rl.math_equal(tolerance = 1e-6)
buffer good { groups = 64, max_age = 2 }
flow train {
  prompt  = sums.draw(2)
  rollout = generator.sample(prompt, n = 8)
  score   = correct(rollout, prompt.target)
  adv     = rl.rloo(score)
  good.put(rollout, adv = adv, keep = rl.mixed(score))
  old     = good.draw(1)
  fresh   = replay(rollout, adv = adv)
  again   = replay(old, adv = old.adv)
  trainer.step(merge(fresh, again), loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 8, max_policy_age = 1 }
"""

TURNS = changed(
    OLD, ("schedule async { steps = 8, max_policy_age = 1 }", "schedule sync { steps = 8 }"),
    ("flow train {", "colocate = [trainer, generator]\nflow train {"),
)  # fmt: skip
"""services that take turns on one GPU"""


def plan(file, host, settings=()):
    chosen = [word for setting in settings for word in ("--set", setting)]
    return CliRunner().invoke(app, ["plan", str(file), "--host", host, *chosen])


def advised(page):
    """Return the settings of each advice of a page."""
    for given in re.findall(r"with \d+[a-z ]* \(([^)]+)\)", page):
        pairs = re.findall(r"`([\w.]+) = (\d+)`", given)
        yield [f"{'' if '.' in key else 'schedule.'}{key}={value}" for key, value in pairs]
    for service, count in re.findall(r" on (\w+); about (\d+) replicas would.*others\n", page):
        yield [f"{service}.replicas={count}"]


@pytest.mark.cover
@pytest.mark.parametrize("host", ["1xH200", "2xH200", "8xH200"])
@pytest.mark.parametrize("name", SHIPPED)
def test_the_compiler_accepts_what_plans_advise(name, host):
    page = plan(FOLDER / name, host).stdout
    assert [plan(FOLDER / name, host, each).exit_code for each in advised(page)] == [
        0 for _ in advised(page)
    ]


def test_some_plans_advise_both():
    pages = [plan(FOLDER / name, "8xH200").stdout
             for name in ("cispo_math.forge", "curriculum_math.forge")]  # fmt: skip
    assert [[*advised(page)] for page in pages] == [
        [["schedule.max_policy_age=2"]], [["generator.replicas=3"]],
    ]  # fmt: skip


def test_an_older_policy_needs_an_older_buffer(tmp_path):
    file = tmp_path / "old.forge"
    file.write_text(OLD)
    (settings,) = advised(plan(file, "2xH200").stdout)
    assert settings == ["schedule.max_policy_age=2", "good.max_age=24"]
    assert plan(file, "2xH200", settings[:1]).exit_code != 0
    found = plan(file, "2xH200", settings)
    assert found.exit_code == 0
    assert all(len(line) <= 100 for line in found.stdout.splitlines())


@pytest.mark.parametrize(("every", "least"), [(1, 1), (3, 3)])
def test_the_least_policy_age_depends_on_the_sync(every, least):
    text = changed(
        GRPO, (", max_policy_age = 1", ""), ("every = 1", f"every = {every}"),
    )  # fmt: skip
    (found,) = [d for d in plan_of(text)[1] if d.code == "A301"]
    assert found.help == f"`max_policy_age = {least}` allows one step of overlap"
    assert plan_of(changed(GRPO, ("every = 1", f"every = {every}")),
                   f"schedule.max_policy_age={least}")[0] is not None  # fmt: skip


def test_larger_microbatches_are_advised_where_they_save_time(tmp_path):
    file = tmp_path / "turns.forge"
    file.write_text(changed(TURNS, ("rows = 8", "rows = 1")))
    page = plan(file, "1xH200").stdout
    (settings,) = advised(page)
    assert settings == ["trainer.batch.rows=8"]
    told, found = (re.findall(r"step (?:takes|,) ([\d.]+ m?s)|about ([\d.]+ m?s) a step", text)
                   for text in (page, plan(file, "1xH200", settings).stdout))  # fmt: skip
    assert told[-1][0] == found[0][1]
    assert float(found[0][1].split()[0]) < 0.95 * float(told[0][1].split()[0])
    assert list(advised(plan(file, "1xH200", settings).stdout)) == []


@pytest.mark.parametrize(
    "edits",
    [
        (TURNS, ("rows = 8", "rows = 8")),
        (TURNS, ("rows = 8", "tokens = 2048")),
        (OLD, ("rows = 8 }", "rows = 1 }, device = cpu")),
        (SFT, ("tokens = 64k", "rows = 1")),
    ],
    ids=["enough", "by tokens", "on a CPU", "rows of a supervised step"],
)
def test_no_larger_microbatches_are_advised(edits):
    text = changed(*edits)
    made, diagnostics = plan_of(text, host=host_of("8xH200", "plan"))
    assert made is not None, diagnostics
    assert with_larger_microbatches(made, graph_of(text)[0]) is None
