"""A file with many profiles is checked in two processes: same findings, same order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint import engine, second_process
from forgedsl.lint.engine import MANY, Linted, lint_file
from forgedsl.shipped import shipped_root

FILES = sorted(shipped_root().glob("*.forge"))
WRONG = """
model m {{ source = local("forgedsl:models/tiny_math"), dtype = f32 }}
dataset d {{ source = jsonl("forgedsl:data/arithmetic_demos.jsonl"), chat = row.messages }}
service trainer : titan(m) {{
  device = cpu, optimizer.lr = 1e-4, batch {{ seq_len = 64, rows = 4 }}
}}
loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) {{ minimize token_mean(-logprob, mask) }}
flow train {{
  batch = d.batches()
  trainer.step(batch, loss = nll)
}}
schedule sync {{ steps = 1 }}
{profiles}
"""


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets tests fork beside threads of pytest; how often a second process was begun."""
    begun: list[int] = []
    start = second_process.start

    def counted(check: Callable[[], second_process.Found]) -> object:
        begun.append(1)
        return start(check)

    monkeypatch.setattr(second_process, "is_useful", lambda: True)
    monkeypatch.setattr(second_process, "start", counted)
    return begun


def both(path: Path) -> tuple[Linted, Linted]:
    return lint_file(path), lint_file(path, fork=True)


def wrong(folder: Path, count: int) -> Path:
    """A file with a finding under each profile, of another value each, and one under the last."""
    profiles = [f"profile p{n} {{ trainer.optimizer.lr = {n + 1}.0 }}" for n in range(count - 1)]
    path = folder / "wrong.forge"
    path.write_text(
        "forge 1" + WRONG.format(profiles="\n".join([*profiles, "profile q { m.context = 9 }"]))
    )
    return path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_files_have_the_same_findings(path: Path, forked: list[int]) -> None:
    one, two = both(path)
    assert one == two


def test_findings_of_both_halves_come_in_order(tmp_path: Path, forked: list[int]) -> None:
    one, two = both(wrong(tmp_path, 7))
    assert len(forked) == 1
    assert len(one.diagnostics) >= 7
    assert one == two


def test_few_profiles_take_no_second_process(tmp_path: Path, forked: list[int]) -> None:
    both(wrong(tmp_path, MANY - 1))
    assert forked == []


def test_a_second_process_that_fails_loses_nothing(
    tmp_path: Path, forked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, check = os.getpid(), engine._check

    def broken(*args: object) -> None:
        if os.getpid() != here:
            raise MemoryError
        check(*args)  # type: ignore[arg-type]

    path = wrong(tmp_path, 7)
    expected: tuple[Diagnostic, ...] = lint_file(path).diagnostics
    monkeypatch.setattr(engine, "_check", broken)
    assert lint_file(path, fork=True).diagnostics == expected
    assert len(forked) == 1


def test_threads_are_not_forked() -> None:
    import threading

    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert not second_process.is_useful()
    finally:
        ended.set()
        thread.join()
