"""A second process checks half of the profiles: the findings are those of one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgedsl.ide.lint_worker import LintWorker
from forgedsl.ide.workspace import Workspace
from forgedsl.lint.worker import Task

ROOT = Path(__file__).parents[2]
PIPELINES = sorted((ROOT / "pipelines").glob("*.forge"))
EDITS = {
    "as it is": ("", ""),
    "a wrong setting in a profile": (
        "profile gpu4",
        "profile other { trainer.lr = 1 }\nprofile gpu4",
    ),
    "a wrong number everywhere": ("prompts    : int   = 16", "prompts    : int   = 0"),
    "a syntax error": ("schedule", "schedule ("),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[LintWorker]:
    made = LintWorker()
    yield made
    made.close()


def findings(path: Path, text: str, worker: LintWorker | None) -> list[str]:
    workspace = Workspace()
    workspace.worker = worker
    workspace.open(path, text)
    return [repr(each) for each in workspace.document(path).findings]


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_findings_are_those_of_one_process(path: Path, worker: LintWorker) -> None:
    text = path.read_text("utf-8").replace("temperature = 1.0", "temperature = 3.0")
    assert findings(path, text, worker) == findings(path, text, None)


@pytest.mark.parametrize("edit", EDITS)
def test_findings_of_profiles_keep_their_order(edit: str, worker: LintWorker) -> None:
    path, (old, new) = ROOT / "pipelines/grpo_math.forge", EDITS[edit]
    text = path.read_text("utf-8")
    changed = text.replace(old, new, 1) if old else text
    assert (changed != text) is bool(old)
    assert findings(path, changed, worker) == findings(path, changed, None)


def test_without_the_process_all_views_are_checked_here() -> None:
    path = ROOT / "pipelines/grpo_math.forge"
    text = path.read_text("utf-8").replace("eps        : float = 0.2", "eps        : float = 4.0")
    wanted = findings(path, text, None)
    assert wanted
    worker = LintWorker()
    worker._process.kill()
    assert findings(path, text, worker) == wanted
    assert findings(path, text, worker) == wanted


def test_an_answer_that_nobody_read_is_not_taken_for_the_next() -> None:
    path = ROOT / "pipelines/grpo_math.forge"
    text = path.read_text("utf-8")
    worker, seen = LintWorker(), Workspace()
    seen.open(path, text)
    document = seen.document(path)
    views = document.profiles[-1:]
    config = document._configured[0]
    for names in (views, document.profiles[:2]):
        finish = worker.start(
            Task(source=document.source, folder=path.parent, config=config, texts={}, views=names)
        )
        assert finish is not None
    found = finish()
    assert found is not None
    assert (*found.findings,) == document.profiles[:2]
    worker.close()


def test_it_ends_with_the_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "forgedsl.ide.lint_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
