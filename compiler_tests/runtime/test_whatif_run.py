"""What-ifs of real runs: they say what a run with the other file reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forgedsl.shipped import shipped_root
from forgedsl_runtime.recorded.files import path_of, read

pytestmark = pytest.mark.full

SETTINGS = ("schedule.steps=2", "prompts=8", "trainer.batch.rows=64", "trainer.optimizer.lr=2e-3",
            "held_out.limit=2", "cluster.gpus=0")  # fmt: skip


def written(folder: Path, name: str, *edits: tuple[str, str]) -> Path:
    """The shipped pipeline with two updates in a step and with edits."""
    text = (shipped_root() / "grpo_math.forge").read_text()
    wandb = ', wandb { project = "grpo-math" }'
    for old, new in ((wandb, ""), ("loss = grpo)", "loss = grpo, minibatches = 2)"),
                     ('local("models', 'local("forgedsl:models'),
                     ('jsonl("data', 'jsonl("forgedsl:data'), *edits):  # fmt: skip
        assert old in text, old
        text = text.replace(old, new)
    path = folder / f"{name}.forge"
    path.write_text(text)
    return path


def forgec(*words: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", *map(str, words)], capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_whatif_says_what_a_run_with_another_reward_and_another_clip_reports(
    tmp_path: Path,
) -> None:
    """Step 1 of both runs has the same samples. Its first update has no clipped token, so that the
    second update starts from the same weights, and clips under both bounds."""
    scores = ("0.85 * correct + 0.1 * thinking", "0.5 * correct + 0.45 * thinking")
    first = written(tmp_path, "first")
    other_clip = written(
        tmp_path, "clip", ("param eps        : float = 0.2", "param eps : float = 0.1")
    )
    other_score = written(tmp_path, "score", scores)
    forgec("run", first, *SETTINGS, "--run-dir", tmp_path / "a", "--quiet")
    forgec("run", other_clip, *SETTINGS, "--run-dir", tmp_path / "b", "--quiet")
    forgec("run", other_score, *SETTINGS, "--run-dir", tmp_path / "c", "--quiet")
    ask = ("whatif", tmp_path / "a", *SETTINGS, "--steps", "1", "--format", "json", "--with")
    clip = json.loads(forgec(*ask, other_clip))["steps"][0]
    for side, run in (("before", "a"), ("after", "b")):
        (values,) = clip[side]
        row = json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[0])
        assert values["value"] == pytest.approx(row["loss"], rel=1e-5, abs=1e-7)
        for name, value in values["reports"].items():
            assert value == pytest.approx(row[f"loss/{name}"], rel=1e-5, abs=1e-7)
    assert clip["after"][0]["reports"]["clip_frac"] > clip["before"][0]["reports"]["clip_frac"] > 0
    forgec(*ask, other_score)
    from forgedsl.lower.job import read_job
    from forgedsl_runtime.whatif.rescore import Rescorer

    files = (tmp_path / "a", tmp_path / "c")
    found = Rescorer(*map(read_job, files), tmp_path).step(1, path_of(files[0], 1))
    wanted = {
        (row["group"], row["sibling"]): (row["response"], row["score/score"], row["value/adv"])
        for row in read(path_of(files[1], 1))
    }
    assert len(wanted) == 64
    made = found.completions
    keys = zip(made.group, made.sibling, strict=True)
    values = zip(made.response, made.after, made.fields["adv"][1], strict=True)
    assert dict(zip(keys, values, strict=True)) == wanted
    assert (tmp_path / "a" / "whatif" / "score.html").read_text().count("<svg") >= 3


def files(run: Path) -> dict[str, bytes]:
    """The run folder, without what-ifs."""
    found = (path for path in run.rglob("*") if path.is_file() and "whatif" not in path.parts)
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def test_training_again_gives_what_the_run_reports_and_what_another_run_would(
    tmp_path: Path,
) -> None:
    """Under the run's own file each step has the metrics of the run, on two ranks too. Under
    another clip the first step is that of a run with it."""
    first = written(tmp_path, "first")
    other = written(tmp_path, "clip", ("param eps        : float = 0.2", "param eps : float = 0.1"))
    saved = (*SETTINGS, "checkpoint.every=1")
    forgec("run", first, *saved, "--run-dir", tmp_path / "a", "--quiet")
    forgec("run", other, *saved, "--run-dir", tmp_path / "b", "--quiet")
    before = files(tmp_path / "a")
    ask = ("whatif", tmp_path / "a", *saved, "--train", "--format", "json")
    same = json.loads(forgec(*ask, "--with", first, "--steps", "1:2", "--procs", "2"))["steps"]
    assert [step["step"] for step in same] == [1, 2]
    for step in same:
        for name, pair in step["metrics"].items():
            assert pair["again"] == pytest.approx(pair["run"], rel=1e-4, abs=1e-6), name
    (latest,) = json.loads(forgec(*ask, "--with", first))["steps"]
    assert latest["step"] == 2
    assert latest["metrics"]["loss"]["again"] == pytest.approx(latest["metrics"]["loss"]["run"])
    (clipped,) = json.loads(forgec(*ask, "--with", other, "--steps", "1"))["steps"]
    row = json.loads((tmp_path / "b" / "metrics.jsonl").read_text().splitlines()[0])
    for name, pair in clipped["metrics"].items():
        assert pair["again"] == pytest.approx(row[name], rel=1e-4, abs=1e-6), name
    changed = clipped["metrics"]["loss/clip_frac"]
    assert changed["again"] > changed["run"] > 0
    assert files(tmp_path / "a") == before
