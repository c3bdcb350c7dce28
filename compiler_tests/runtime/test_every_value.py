"""Every word that a setting can be is carried out: runs on this machine's processors have them, or
the compiler refuses it by name, or what it needs is said here.

    schemas --words--> VALUES --one of each setting a run--> runs of two steps

The words come from the schemas, so that a new one cannot be forgotten: without a place here it
runs. `test_every_setting` says that a setting reaches the runtime, this says that its values do no
harm there.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forge_texts import changed, lower_of

from forgedsl.schema import KINDS, SERVICES
from forgedsl.schema.kinds import SYNC

ROOT = Path(__file__).parents[2]
PIPELINES = ROOT / "pipelines"
SCHEMAS = {
    **{name: kind for name, kind in KINDS.items() if name != "service"},
    **SERVICES,
    "sync": SYNC,
}
VALUES = {
    (kind, setting.name): (*setting.type.words, *(("auto",) if setting.type.auto else ()))
    for kind, schema in SCHEMAS.items()
    for setting in schema.settings
    if setting.type.words
}
SYNCED = "  sync trainer -> generator { on_swap = ON_SWAP, transport = TRANSPORT }"
WANDB = 'logging { wandb { project = "p" } }\n'
ELSEWHERE = {
    ("titan", "device", "gpu"): "a GPU",
    ("vllm", "device", "gpu"): "a GPU",
    ("sync", "transport", "ipc"): "a GPU",
    ("sync", "transport", "peer"): "two GPUs",
    ("sync", "transport", "nccl"): "two GPUs",
    ("logging", "wandb.mode", "online"): "an account",
}
"""what a value needs that no machine without has; where it is a GPU the compiler says so"""
REFUSED = {
    ("titan", "dtype", "f16"): "P216",
    ("vllm", "engine.kv_dtype", "fp8"): "P216",
    ("vllm", "engine.weight_dtype", "fp8"): "P216",
}
"""by the compiler, for a job like these on processors"""
BESIDE = {("titan", "optimizer.precision", "bf16"): ("titan", "dtype", "bf16")}
"""what else has to be said beside a value (F113)"""
ALONE = {("titan", "optimizer.adjust_lr"): ("titan", "optimizer.kind", "muon")}
"""settings that only one value of another reads (F113): each of theirs is a run of its own"""
NAMES = {
    "reinforced": {"model": "policy", "reward": "correct", "rubric": "grade", "titan": "trainer",
                   "vllm": "generator", "dataset": "sums"},
    "shown": {"model": "base", "dataset": "demos", "titan": "trainer"},
    "played": {"environment": "game"},
}  # fmt: skip
"""what the programs declare; a kind's values are run in the first program that has it"""
SINGLE = ("schedule", "logging", "eval", "checkpoint")


def program(name: str) -> str:
    if name == "reinforced":
        text = re.search(
            r"^```forge sums.forge\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.S | re.M
        )
        assert text is not None
        return changed(text[1], ("  sync trainer -> generator", SYNCED)) + WANDB
    file = {"shown": "sft_math.forge", "played": "guess_math.forge"}[name]
    return (PIPELINES / file).read_text("utf-8")


def place(kind: str, setting: str) -> tuple[str, str]:
    """The program that has a setting's values run, and the setting's address in it."""
    if kind == "sync":
        return "reinforced", setting
    if (kind, setting) == ("dataset", "learn"):
        return "shown", f"demos.{setting}"
    for name, declared in NAMES.items():
        if kind in declared:
            return name, f"{declared[kind]}.{setting}"
    assert kind in SINGLE, f"no program here has a {kind}"
    return "reinforced", f"{kind}.{setting}"


def here(kind: str, setting: str) -> list[str]:
    """The values of a setting that run on processors."""
    apart = ELSEWHERE | REFUSED
    return [word for word in VALUES[kind, setting] if (kind, setting, word) not in apart]


def runs() -> list[Any]:
    """(program, overrides, its transports and swaps): one value of each setting at a time. The
    first is mostly the default; `make test-all` runs others of one program, `make deep` all."""
    found = []
    for name in NAMES:
        mine = [key for key in VALUES if place(*key)[0] == name and key not in ALONE]
        rows = {key: words for key in mine if (words := here(*key))}
        for turn in range(max(map(len, rows.values()), default=0)):
            chosen = {key: words[turn % len(words)] for key, words in rows.items()}
            for key, word in [*chosen.items()]:
                for kind, setting, other in [*filter(None, [BESIDE.get((*key, word))])]:
                    chosen[kind, setting] = other
            marks = pytest.mark.full if (name, turn) == ("shown", 1) else pytest.mark.deep
            found.append(pytest.param(name, chosen, id=f"{name} {turn}", marks=marks))
    for key, (kind, setting, other) in ALONE.items():
        for word in here(*key):
            chosen = {key: word, (kind, setting): other}
            name = f"{key[1]} {word}"
            found.append(pytest.param(place(*key)[0], chosen, id=name, marks=pytest.mark.deep))
    return found


def settled(text: str, chosen: dict[tuple[str, str], str]) -> tuple[str, list[str]]:
    """The program with what is written into its sync, and overrides for the rest."""
    overrides = []
    for (kind, setting), word in chosen.items():
        if kind == "sync":
            text = text.replace(setting.upper(), word)
        else:
            overrides.append(f"{place(kind, setting)[1]}={word}")
    text = text.replace("ON_SWAP", "recompute").replace("TRANSPORT", "auto")
    return text, overrides


def test_what_needs_more_or_is_refused_is_in_the_language() -> None:
    known = {(*key, word) for key, words in VALUES.items() for word in words}
    assert (ELSEWHERE | REFUSED).keys() <= known
    assert all(place(*key) for key in VALUES)


@pytest.mark.parametrize(("kind", "setting", "word"), [*REFUSED])
def test_what_is_refused_is_a_diagnostic(kind: str, setting: str, word: str) -> None:
    name, _ = place(kind, setting)
    text, overrides = settled(program(name), {(kind, setting): word})
    found = lower_of(text, *overrides, folder=PIPELINES)[1]
    assert {d.code for d in found if d.severity == "error"} == {REFUSED[kind, setting, word]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "chosen"), runs())
def test_values_run(name: str, chosen: dict[tuple[str, str], str], tmp_path: Path) -> None:
    text, overrides = settled(program(name), chosen)
    # beside the data that the shipped programs name
    for folder in ("data", "models", "tokenizers", "environments"):
        (tmp_path / folder).symlink_to(PIPELINES / folder)
    (tmp_path / "values.forge").write_text(text, "utf-8")
    edits = [edit for each in overrides for edit in ("--set", each)]
    command = ["run", "values.forge", *edits, "schedule.steps=2", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=570, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text("utf-8").splitlines()
    losses = [row["loss"] for row in map(json.loads, lines)]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
