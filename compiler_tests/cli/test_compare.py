"""`forgec compare`: groups of seeds, the better group with its uncertainty, the page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

import forgedsl
from forgedsl.cli.app import app
from forgedsl.runs.compare import MOST, compare, interval, page, render
from forgedsl.runs.data import load_run
from forgedsl.runs.page import tiles

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
JOBS: dict[tuple[str, ...], Any] = {}


def run_folder(folder: Path, reward: float, held_out: float, *overrides: str) -> Path:
    """A finished run of four steps whose reward and eval end at these values."""
    if overrides not in JOBS:
        JOBS[overrides] = forgedsl.load(GRPO, profile="cpu", set=overrides).plan().job
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(JOBS[overrides].model_dump_json())
    rows = [{"step": step, "reward_mean": reward * step / 4} for step in (1, 2)]
    rows += [{"step": step, "reward_mean": reward} for step in (3, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events: list[dict[str, Any]] = [{"time": 1.0, "kind": "run.start", "steps": 4}]
    for number, (step, value) in enumerate([(0, 0.1), (4, held_out)], 1):
        about = {"id": number, "name": "held_out", "step": step}
        events.append({"time": 2.0 + number, "kind": "eval.start", **about})
        events.append({"time": 2.5 + number, "kind": "eval.end", "value": value, **about})
    events.append({"time": 9.0, "kind": "run.end", "code": 0, "status": "done", "message": ""})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture
def six(tmp_path: Path) -> list[Path]:
    """Two learning rates with three seeds each."""
    return [
        run_folder(
            tmp_path / f"lr{lr}-{seed}", 0.5 + gain + 0.01 * seed, 0.6 + gain + 0.01 * seed,
            f"trainer.optimizer.lr={lr}", f"run.seed={seed}",
        )
        for lr, gain in (("1e-5", 0.0), ("3e-5", 0.2)) for seed in (1, 2, 3)
    ]  # fmt: skip


def test_a_sweep_stands_for_its_runs(six: list[Path], tmp_path: Path) -> None:
    points = [{"folder": run.name} for run in six[::-1]] + [{"folder": "not-begun"}]
    (tmp_path / "sweep.json").write_text(json.dumps({"points": points}))
    told = CliRunner().invoke(app, ["compare", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("6 runs, 2 groups")
    named = [str(path) for path in (*six, tmp_path / "sweep.json")]  # as `runs/sweep/*` does
    assert CliRunner().invoke(app, ["compare", *named]).stdout.startswith("6 runs, 2 groups")
    assert forgedsl.compare(tmp_path).groups == forgedsl.compare(*six[::-1]).groups


SUMS = """
forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) { device = cpu, batch { seq_len = 64, rows = 256 } }
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 16 } }
reward correct = rl.math_equal(tolerance = 1e-6)
flow train {
  prompt  = sums.draw(32)
  rollout = generator.sample(prompt, n = 8)
  batch   = replay(rollout, adv = rl.group_norm(correct(rollout, prompt.target)))
  trainer.step(batch, loss = rl.grpo(beta = 0.0))
  sync trainer -> generator
}
schedule async { steps = 1, max_policy_age = 1 }
"""


def run_of_sums(folder: Path, reward: float, *overrides: str) -> Path:
    """A finished run of one step, of a dataset with the default `shuffle`."""
    folder.mkdir(parents=True)
    (folder / "sums.forge").write_text(SUMS)
    job = forgedsl.load(folder / "sums.forge", set=overrides).plan().job
    (folder / "job.json").write_text(job.model_dump_json())
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward_mean": reward}) + "\n")
    return folder


def told_by(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_default_shuffle_is_part_of_the_seed(tmp_path: Path) -> None:
    runs = [run_of_sums(tmp_path / f"s{n}", 0.3 + 0.01 * n, f"run.seed={n}") for n in (1, 2)]
    told = told_by("compare", *runs)
    assert told.startswith("2 runs, 1 group\n")
    assert "shuffle" not in told
    assert len(forgedsl.compare(*runs).groups) == 1
    assert told_by("runs", tmp_path).splitlines()[0].split()[-1] == "seed"
    changes = json.loads(told_by("diff", *runs, "--format", "json"))["changes"]
    assert [change["path"] for change in changes] == ["run.seed"]


def test_a_shuffle_of_its_own_is_a_setting(tmp_path: Path) -> None:
    runs = [
        run_of_sums(tmp_path / f"s{seed}{shuffle}", 0.3, f"run.seed={seed}",
                    *[f"sums.shuffle=seed({shuffle})"] * bool(shuffle))
        for seed, shuffle in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 0), (2, 7))
    ]  # fmt: skip
    groups = compare(runs[:4]).groups  # shuffle 1 and 2, each with both seeds
    assert [len(group.runs) for group in groups] == [2, 2]
    assert [group.label for group in groups] == [f"datasets.sums.shuffle={n}" for n in (1, 2)]
    values = [group.settings["datasets.sums.shuffle"] for group in compare(runs[4:]).groups]
    assert values == ["run.seed", 7]
    assert "sums.shuffle  1 -> 7" in told_by("diff", *runs[4:])
    assert "datasets.sums.shuffle" in told_by("runs", tmp_path).splitlines()[0]


def test_a_default_length_of_prompts_is_no_setting(tmp_path: Path) -> None:
    short = "generator.sampling.max_tokens=8"
    plain, other = run_of_sums(tmp_path / "a", 0.3), run_of_sums(tmp_path / "b", 0.3, short)
    assert compare([plain, other]).names == ("generator.sampling.max_tokens",)
    own = run_of_sums(tmp_path / "c", 0.3, "sums.max_prompt_tokens=40")
    assert compare([plain, own]).names == ("datasets.sums.max_prompt_tokens",)


def test_long_values_of_runs_keep_their_ends(tmp_path: Path) -> None:
    for name, path in (
        ("a", "inputs/data/minus.csv"),
        ("b", "inputs/data/problems/of/2026/minus.csv"),
    ):
        folder = run_of_sums(tmp_path / name, 0.3)
        job = json.loads((folder / "job.json").read_text())
        job["datasets"]["sums"]["source"] |= {"path": path}
        (folder / "job.json").write_text(json.dumps(job))
    told = [line.split()[-1] for line in told_by("runs", tmp_path).splitlines()]
    assert told[1:] == ["data/minus.csv", "data/problems...2026/minus.csv"]


def test_a_session_has_no_number_of_steps_to_reach(tmp_path: Path) -> None:
    run_of_sums(tmp_path / "run", 0.3, "schedule.steps=200")
    session = run_of_sums(tmp_path / "session", 0.3, "schedule.steps=200")
    (session / "session.json").write_text("{}")
    told = [line.split() for line in told_by("runs", tmp_path).splitlines()[1:]]
    steps = {name: step for name, _not, _started, step, *_ in told}
    assert steps == {"run": "1/200", "session": "1"}
    (tile,) = (each for each in tiles(load_run(session)) if each["label"] == "Steps")
    assert (tile["value"], tile["note"]) == ("1", "")


def test_rewards_of_one_step_are_compared(tmp_path: Path) -> None:
    runs = [run_of_sums(tmp_path / f"s{n}", 0.3 + 0.01 * n, f"run.seed={n}") for n in (1, 2)]
    assert compare(runs).groups[0].values == {"reward": (0.31, 0.32)}
    assert "0.315 +- " in told_by("compare", *runs)


def test_equal_groups_are_called_equal(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / lr, 0.5, 0.6, f"trainer.optimizer.lr={lr}") for lr in ("1e-5", "3e-5")
    ]
    best = {each.measure: each.text for each in compare(runs).best}
    assert best["held_out"] == (
        "held_out: trainer.optimizer.lr=1e-05 and trainer.optimizer.lr=3e-05 are equal"
    )


def test_seeds_are_one_group_and_the_better_rate_is_named(six: list[Path]) -> None:
    found = compare(six)
    assert [len(group.runs) for group in found.groups] == [3, 3]
    assert found.names == ("trainer.optimizer.lr",)
    assert found.groups[0].values["held_out"] == pytest.approx((0.61, 0.62, 0.63))
    best = {each.measure: each for each in found.best}["held_out"]
    assert best.group == "trainer.optimizer.lr=3e-05"
    assert best.by == pytest.approx(0.2)
    # equal variances of 1e-4: Welch's 4 degrees of freedom, 2.776 * sqrt(2e-4 / 3)
    assert best.high - best.by == pytest.approx(2.776 * math.sqrt(2e-4 / 3))
    assert "is better than trainer.optimizer.lr=1e-05 by 0.200 (95% interval" in best.text


def test_noise_is_called_noise(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / f"{lr}-{seed}", value, value, f"trainer.optimizer.lr={lr}",
                   f"run.seed={seed}")
        for lr, values in (("1e-5", (0.2, 0.8)), ("3e-5", (0.3, 0.9)))
        for seed, value in enumerate(values, 1)
    ]  # fmt: skip
    assert "which may be noise" in render(compare(runs))


def test_one_run_each_has_no_spread(six: list[Path]) -> None:
    text = render(compare([six[0], six[3]]))
    assert (
        "a single run per group gives no confidence interval: run more seeds (--seeds of a sweep)"
        in text
    )
    assert "+- " not in text.split("values:")[0]


def test_groups_that_differ_in_much_are_named_by_their_runs(tmp_path: Path) -> None:
    changes = [f"services.trainer.s{i}" for i in range(MOST + 1)]
    runs = [run_folder(tmp_path / name, 0.5, value) for name, value in (("a", 0.6), ("b", 0.7))]
    for run, rate in zip(runs, (1, 2), strict=True):
        job = json.loads((run / "job.json").read_text())
        job["params"] |= dict.fromkeys(changes, rate)
        (run / "job.json").write_text(json.dumps(job))
    found = compare(runs)
    assert [group.label for group in found.groups] == ["run=a", "run=b"]
    assert f"{MOST + 1} settings differ: `forgec diff RUN RUN` lists them" in render(found)


def test_rewards_of_other_definitions_are_not_compared(tmp_path: Path) -> None:
    a, b = run_folder(tmp_path / "a", 0.6, 0.6), run_folder(tmp_path / "b", 0.7, 0.7)
    slower = run_folder(tmp_path / "c", 0.8, 0.8, "correct.timeout=7s")
    job = json.loads((b / "job.json").read_text())
    job["rewards"]["correct"]["sha256"] = "another text of its file"
    (b / "job.json").write_text(json.dumps(job))
    assert [each.measure for each in compare([a, slower]).best] == ["reward", "held_out"]
    found = compare([a, b])
    assert [group.label for group in found.groups] == ["code=variant 1", "code=variant 2"]
    # `correct` also scores the eval
    assert found.best == ()
    assert "reward: not compared, because the runs have different rewards" in render(found)
    assert "held_out: not compared, because the runs score this eval by" in render(found)
    assert "reward: not compared" in page(found)


def test_a_reward_written_in_the_file_is_part_of_the_definition(tmp_path: Path) -> None:
    a, b = run_folder(tmp_path / "a", 0.6, 0.6), run_folder(tmp_path / "b", 0.7, 0.7)
    text = (b / "job.json").read_text()
    assert text.count("r.num_tokens / 16") == 1
    (b / "job.json").write_text(text.replace("r.num_tokens / 16", "r.num_tokens / 8"))
    found = compare([a, b])
    # `brevity` is in the rubric, and no part of the eval
    assert [each.measure for each in found.best] == ["held_out"]
    assert "reward: not compared" in render(found)


def test_an_eval_on_other_rows_is_not_compared(tmp_path: Path) -> None:
    a = run_folder(tmp_path / "a", 0.6, 0.6)
    b = run_folder(
        tmp_path / "b", 0.7, 0.7, 'held_out.source=jsonl("forgedsl:data/arithmetic.jsonl")'
    )
    found = compare([a, b])
    assert [each.measure for each in found.best] == ["reward"]
    assert "held_out: not compared" in render(found)


def test_a_spread_that_is_not_that_of_seeds_is_said(six: list[Path]) -> None:
    assert "same seed" not in render(compare(six))
    assert "of different steps" not in render(compare(six))
    twin = run_folder(six[0].parent / "twin", 0.3, 0.3, "trainer.optimizer.lr=1e-5", "run.seed=1")
    rows = (twin / "metrics.jsonl").read_text().splitlines(keepends=True)
    (twin / "metrics.jsonl").write_text("".join(rows[:2]))
    text = render(compare([*six, twin]))
    assert "lr1e-5-1 and twin have the same seed, 1: +- is not the spread over seeds" in text
    assert "the runs have 2 to 4 steps: their last values are those of different steps" in text


def test_equal_values_leave_no_doubt() -> None:
    assert interval([1.0, 1.0], [0.5, 0.5]) == 0.0
    assert interval([1.0], [0.5, 0.5]) is None


def test_the_page_has_a_chart_for_each_measure(six: list[Path]) -> None:
    text = page(compare(six))
    assert text.count("<svg") == 2
    assert text.count('class="band') == 4
    assert "lr3e-5-2" in text
    assert "http" not in text


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_the_command(six: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "compare.html"
    done = invoke("compare", *map(str, six), "-o", str(out))
    assert done.exit_code == 0
    assert done.stdout.startswith("6 runs, 2 groups\n")
    assert out.read_text().startswith("<!doctype html>")
    read = json.loads(invoke("compare", *map(str, six), "--format", "json").stdout)
    assert [len(group["runs"]) for group in read["groups"]] == [3, 3]
    assert [each["measure"] for each in read["best"]] == ["reward", "held_out"]


def test_runs_are_compared_from_python(six: list[Path], tmp_path: Path) -> None:
    found = forgedsl.compare(forgedsl.open_run(six[0]), *six[1:])
    assert repr(found) == render(compare(six))
    assert found.best["held_out"].group == "trainer.optimizer.lr=3e-05"
    assert [len(group.runs) for group in found.groups] == [3, 3]
    assert "&lt;svg" in found._repr_html_()
    assert found.save(tmp_path / "page.html").read_text() == page(compare(six))
    with pytest.raises(forgedsl.PipelineError, match="name at least two different runs"):
        forgedsl.compare(six[0], six[0])
    with pytest.raises(TypeError, match="`compare` takes results and run folders, not 5"):
        forgedsl.compare(six[0], 5)
    with pytest.raises(forgedsl.PipelineError, match="is not a run folder"):
        forgedsl.compare(six[0], tmp_path)


def test_a_measure_that_is_not_compared(six: list[Path], tmp_path: Path) -> None:
    best = forgedsl.compare(*six).best
    assert best.get("rewards") is None
    with pytest.raises(KeyError):
        best["rewards"]
    there = r"compared are reward, held_out; did you mean `reward`\?"
    with pytest.raises(forgedsl.PipelineError, match=f"no measure 'rewards'; {there}"):
        best["rewards"]
    with pytest.raises(forgedsl.PipelineError, match="the runs differ in the seed alone; no meas"):
        forgedsl.compare(*six[:3]).best["reward"]
    for run in six:
        (run / "metrics.jsonl").write_text("")
        (run / "events.jsonl").write_text("")
    with pytest.raises(forgedsl.PipelineError, match="neither a reward nor an eval, so nothing"):
        forgedsl.compare(*six).best["reward"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope", "nope2"), "forgec compare: there is no folder nope"),
        (("RUN", "RUN"), "name at least two different runs"),
        (("RUN", "RUN", "--format", "yaml"), "--format must be one of text, json, not `yaml`"),
    ],
)
def test_a_mistake(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", 0.5, 0.5)
    done = invoke("compare", *(str(run) if word == "RUN" else word for word in words))
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_number_of_values_is_said_where_it_is_not_that_of_the_runs(six: list[Path]) -> None:
    events = (six[0] / "events.jsonl").read_text().splitlines(keepends=True)
    (six[0] / "events.jsonl").write_text(events[0] + events[-1])
    (first, second) = render(compare(six)).splitlines()[3:5]
    assert "0.625 +- 0.0071 (n = 2)" in first
    assert "n = " not in second


def test_runs_without_steps_are_left_out(six: list[Path]) -> None:
    (six[0] / "metrics.jsonl").write_text("")
    found = compare(six)
    assert [len(group.runs) for group in found.groups] == [2, 3]
    assert "left out, without steps: lr1e-5-1" in found.notes
    for run in six:
        (run / "metrics.jsonl").write_text("")
    assert compare(six).without_steps == ()


def test_equal_seeds_are_not_said_to_differ(six: list[Path]) -> None:
    job = json.loads((six[0] / "job.json").read_text())
    for run, steps in zip(six[:2], (2, 4), strict=True):
        (run / "job.json").write_text(json.dumps(job))
        rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(rows[:steps]))
    with pytest.raises(forgedsl.PipelineError, match="differ in the number of steps alone"):
        forgedsl.compare(*six[:2]).best["reward"]


def test_a_declaration_that_a_run_lacks_is_one_setting(tmp_path: Path) -> None:
    from forgedsl.runs.settings import differing, settings_of, value_at

    held = {"source": {"kind": "jsonl", "path": "a"}, "level": 1, "learn": "all"}
    train = {"source": {"kind": "jsonl", "path": "b"}, "level": 2, "learn": "all"}
    jobs = [
        {"datasets": {"m.train": train, "m.held": held}, "evals": {"held": {"every": 5}}},
        {"datasets": {"m.train": train}, "evals": {}},
    ]
    found = [settings_of(job) for job in jobs]
    assert differing(found) == ["datasets.m.held", "evals.held"]
    assert [value_at(job, "evals.held") for job in found] == ["yes", None]
    for name, job in zip("ab", jobs, strict=True):
        (tmp_path / name).mkdir()
        told = {"evals": {k: {"loss": None} for k in job["evals"]}, "schedule": {"steps": 4}}
        (tmp_path / name / "job.json").write_text(json.dumps(job | told))
    shown = CliRunner().invoke(app, ["runs", str(tmp_path)]).output.splitlines()
    assert shown[0].split()[-1] == "evals.held"
    assert "datasets" not in shown[0]
