"""`forgec explain`: codes, values, losses."""

import subprocess
import sys
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.explain import losses

ROOT = Path(__file__).parents[2]
GRPO = "pipelines/grpo_math.forge"


def explain(*words, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "explain", *map(str, words)],
        capture_output=True, text=True, cwd=cwd, check=False,
    )  # fmt: skip


def test_a_code_of_lint():
    done = explain("L405")
    assert done.returncode == 0
    assert done.stdout.startswith("L405 unbounded-exp  (error, can be suppressed)\n")


def test_a_code_of_syntax_in_small_letters():
    done = explain("s006")
    assert "This gives S006:\n\n    require 2 = 2\n" in done.stdout


def test_an_unknown_code():
    done = explain("L418")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("forgec: there is no code L418; did you mean ")


def test_what_looks_like_a_code_is_told_what_codes_are():
    done = explain("XX99")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("forgec: there is no code XX99; a code is a letter and three ")


def test_a_value_goes_through_its_layers(tmp_path):
    (tmp_path / "x.toml").write_text("[trainer]\nprocs = 3\n")
    done = explain(
        "trainer.procs", GRPO, "--profile", "cpu", "--set-file", tmp_path / "x.toml",
        "--set", "trainer.procs=2",
    )  # fmt: skip
    title, doc, _, *rows = done.stdout.splitlines()
    assert (title, doc) == (
        "trainer.procs = 2",
        "  processes per host; an integer or `auto`; placement",
    )
    layers = [row.split()[0] for row in rows]
    assert layers == ["default", "file", "profile", f"{tmp_path}/x.toml:", "--set"]
    assert rows[1].endswith("4  pipelines/grpo_math.forge:29:15")
    assert rows[-1].endswith("<- in force")


def test_a_default_is_a_layer():
    rows = explain("checkpoint.keep", GRPO).stdout.splitlines()[3:]
    assert [row.split()[:2] for row in rows] == [["default", "2"], ["file", "3"]]


def test_how_a_value_was_written():
    assert "1024 (written max_new)" in explain("generator.sampling.max_tokens", GRPO).stdout


def test_a_parameter():
    assert explain("max_new", GRPO, "--profile", "cpu").stdout.startswith("max_new = 16\n")


def test_a_declaration_shows_all_its_settings():
    lines = explain("generator", GRPO).stdout.splitlines()
    assert lines[0] == "generator: a vLLM engine that samples completions"
    assert {line.split()[0] for line in lines[2:]} >= {"procs", "sampling.top_k", "replicas"}


def test_a_misspelt_path():
    done = explain("traner.procs", GRPO)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("did you mean `trainer.procs`?\n")


def test_a_file_with_errors(tmp_path):
    (tmp_path / "a.forge").write_text("checkpoint { evry = 3 }\n")
    done = explain("checkpoint.every", "a.forge", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error[F103]" in done.stderr


def test_a_missing_file():
    assert explain("a.b", "no.forge").returncode == 2


def test_a_loss_of_the_file_comes_before_the_library():
    assert "pg = -min(ratio * adv" in explain("grpo", GRPO).stdout


STANDARD, _ = api.load_functions("std/rl")
TREES = sorted(n for n, f in STANDARD.items() if f.kind in ("loss", "advantage", "filter"))


@pytest.mark.parametrize("name", TREES)
def test_standard_functions_as_mathematics(name, golden):
    golden(f"math/{name}.txt", losses.page(STANDARD[name]))


def test_values_are_shown_as_they_are_written(tmp_path):
    (tmp_path / "p.forge").write_text(
        'dataset d { source = mixture([jsonl("a.jsonl"), jsonl("b.jsonl")], weights = [1, 1]) }\n'
        "checkpoint { every = 5 }\n"
        "cluster { gpu_memory = 80GiB }\n"
    )
    whole = explain("d", "p.forge", cwd=tmp_path).stdout
    assert 'mixture(sources = [jsonl(path = "a.jsonl"), jsonl(path = "b.jsonl")], ' in whole
    assert "  learn              assistant_turns " in whole
    assert explain("cluster.gpu_memory", "p.forge", cwd=tmp_path).stdout.startswith(
        "cluster.gpu_memory = 80GiB\n"
    )


def test_a_block_of_settings():
    done = explain("trainer.optimizer", GRPO)
    assert "optimizer.kind          adamw" in done.stdout
    assert "batch." not in done.stdout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("titan", "| `optimizer.lr` |"),
        ("loss", "The objective to minimize"),
        ("param", "param group : int = 8"),
        ("lr", "# lr, of titan\n\n| setting |"),
        ("optimizer", "| `optimizer.warmup` |"),
        ("trainer.optimizer.lr", "# optimizer.lr, of titan\n\n| setting |"),
        ("draw", "draws `count` prompts for each step"),
        ("token_mean", "sum over valid tokens"),
        ("minimize", "what a loss is"),
        ("behavior", "log-prob of each token under the weights that sampled it"),
    ],
)
def test_a_word_that_is_the_same_in_all_files(word, said):
    done = explain(word)
    assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_end_of_a_setting_of_a_file():
    done = explain("lr", GRPO)
    assert "did you mean `trainer.optimizer.lr`" in done.stderr


def test_a_misspelt_word():
    assert "did you mean `titan`?" in explain("titann").stderr


@pytest.mark.parametrize("word", ["rl.gro", "rl.groop_norm"])
def test_the_beginning_of_a_name_is_enough_for_a_suggestion(word):
    done = explain(word)
    assert done.returncode == 2
    assert "did you mean `group_norm`?" in done.stderr
