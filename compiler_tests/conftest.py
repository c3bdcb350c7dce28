"""Shared fixtures: golden files.

    golden("grpo_math/graph.txt", text)     compares with compiler_tests/golden/grpo_math/graph.txt

`pytest --update-golden` writes instead of comparing. After a whole run, a golden that no test asked
for is an error: goldens are reviewed as code, and dead ones mislead.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# `make test` runs slices with fixed seeds; `make deep` looks at other inputs each time.
settings.register_profile("slices", derandomize=True, database=None)
DEEP = os.environ.get("FORGE_DEEP") == "1"
if not DEEP:
    settings.load_profile("slices")
ASKED: set[Path] = set()
os.environ["FORGE_CALIBRATION"] = ""  # plans rest on no runs of whoever tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases marked `deep` are those of `make deep`: others of their test run in `make test`."""
    if not DEEP:
        for item in items:
            if item.get_closest_marker("deep"):
                item.add_marker(pytest.mark.skip(reason="a case of `make deep` (FORGE_DEEP=1)"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, or rewrite the file under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        ASKED.add(path)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        if not path.is_file():
            pytest.fail(f"golden {name} is missing; write it with --update-golden")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="", n=2
            )
            pytest.fail("\n".join(list(diff)[:80]) or f"golden/{name} differs in line ends")

    return check


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker's tests asked for."""
    ASKED.update(GOLDEN / name for name in getattr(node, "workeroutput", {}).get("goldens", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a whole, green run that left goldens unasked for."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["goldens"] = [path.relative_to(GOLDEN).as_posix() for path in ASKED]
        return
    whole = session.config.args in ([], ["compiler_tests"]) or session.config.args == [
        str(Path(__file__).parent)
    ]
    selected = session.config.option.keyword or session.config.option.markexpr
    if exitstatus or not whole or selected:
        return
    orphans = sorted(p for p in GOLDEN.rglob("*") if p.is_file() and p not in ASKED)
    if orphans:
        names = ", ".join(p.relative_to(GOLDEN).as_posix() for p in orphans)
        print(f"\ngolden files that no test asked for: {names}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
