"""What a newcomer reads where something is missing: one message, a remedy that applies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app

TEXT = """
forge 1
import "std/rl" as rl
model policy { source = hf("nobody/none"), arch = qwen3("0.6B"), context = 1024 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, procs = PROCS, optimizer { lr = 1e-6 }, batch { seq_len = 1024, rows = 2 }
}
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 128 } }
reward correct = rl.math_equal
rubric grade { score = correct, on_truncated = 0.0 }
flow train {
  prompt  = sums.draw(2)
  rollout = generator.sample(prompt, n = 4)
  score   = grade(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 2, max_policy_age = 1 }
"""


def said(folder: Path, *words: str, procs: int = 1) -> str:
    path = folder / "t.forge"
    path.write_text(TEXT.replace("PROCS", str(procs)))
    return CliRunner().invoke(app, [words[0], str(path), *words[1:]]).output


@pytest.mark.parametrize(
    ("procs", "remedy"),
    [
        (1, "use a smaller model in `trainer`, or a host with more memory"),
        (2, "start fewer processes of `trainer`, or use a smaller model"),
    ],
)
def test_fewer_processes_are_proposed_where_there_are_several(
    tmp_path: Path, procs: int, remedy: str
) -> None:
    found = said(tmp_path, "lint", "cluster.memory=8GiB", "cluster.hosts=1", procs=procs)
    assert "P205" in found
    assert remedy in found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            ("run", "--seed", "abc"),
            ("forgec run: --seed must be a whole number, not `abc`; see `forgec"),
        ),
        (
            ("run", "--seed=1.5"),
            "forgec run: --seed must be a whole number, not `1.5`; see `forgec",
        ),
        (("sim", "--steps", "many"), "forgec sim: --steps must be a whole number, not `many`; see"),
    ],
)
def test_a_value_of_an_option_is_refused_in_plain_words(
    tmp_path: Path, words: tuple[str, ...], found: str
) -> None:
    assert found in said(tmp_path, *words)


def test_the_host_of_a_plan_is_that_of_its_findings(tmp_path: Path) -> None:
    """A step takes longer on two cores than on 64."""
    words = ("n = 4", "n = 4000000")
    (tmp_path / "u.forge").write_text(TEXT.replace("PROCS", "1").replace(*words))
    word = ["plan", str(tmp_path / "u.forge"), "--host", "cpu"]
    times = {
        cores: re.search(
            r"A316\]: a step takes about (.*) by the plan: `n` is 4,000,000",
            CliRunner().invoke(app, [*word, f"cluster.cpus={cores}", "cluster.memory=9TiB"]).output,
        )
        for cores in (2, 64)
    }
    assert all(times.values())
    assert times[2][1] != times[64][1]


def test_a_hub_that_is_not_reached_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fetch(*_: object, **options: object) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError: no name\nAn error happened.\n\nRetry.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    found = said(tmp_path, "run", "cluster.memory=500GiB", "--dry-run")
    assert found.count("ConnectError: no name") == 1
    assert "hub: it cannot be reached (ConnectError: no name), and the local cache does" in found
    assert "An error happened" not in found
    assert "FAILED  same error as `models`" in found


def test_a_dry_run_takes_the_folder_of_a_start_that_trained_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.json").write_text("{}")
    words = ("run", "cluster.memory=500GiB", "--dry-run", "--run-dir", str(tmp_path / "run"))
    assert "already contains a run" not in said(tmp_path, *words)
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 1}\n')
    assert "already contains a run" in said(tmp_path, *words)
