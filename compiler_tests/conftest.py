"""Shared fixtures: golden files; what a failed run says of its machine.

    golden("grpo_math/graph.txt", text)     compares with compiler_tests/golden/grpo_math/graph.txt

`pytest --update-golden` writes instead of comparing. After a whole run, a golden that no test asked
for is an error: goldens are reviewed as code, and dead ones mislead.

`make test` runs what is not marked `full`, `make test-all` what is. Of a test that is marked
`cover(n)`, `make test` runs cases until each value of each parameter has occurred (`n` = 1, the
default), or each pair of values of two parameters (`n` = 2); its other cases become `full`.

At the end of a run each cause of skipped tests has a line, with what would test them.
"""

from __future__ import annotations

import difflib
import itertools
import os
import platform
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
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
ORPHANS: list[Path] = []
"""goldens that no test of a whole run asked for"""
RANK = {"deep": 0, "runtime": 1, "numerics": 2, "passes": 3}
"""folders with long files go first"""
KERNELS = "numerics"
"""folder of tests of kernels; folders are collected in the order of their names"""
TRITON = "triton.language"
NOT_FULL = "not full and not smoke"
"""what `make test` asks for: it reads every golden"""
REMEDIES = (
    (r"FORGE_DEEP", "make deep"),
    (r"needs? (?P<n>\d+|a|an NVIDIA) GPU", "a host with {n} GPU"),
    (r"no real model", "make smollm"),
    (r"no Slurm", "root and: apt-get install slurm-wlm munge"),
    (r"no ssh server", "root and: apt-get install openssh-server"),
    (r"no chromium", "apt-get install chromium"),
    (r"no nvim", "apt-get install neovim"),
    (r"no (emacs|eglot)", "apt-get install emacs elpa-eglot"),
    (r"no package registry", "a network with a package registry, then: make site"),
    (r"no (npm|node)", "apt-get install npm, or Node 20"),
    (r"a small disk takes root", "root and: unshare, of util-linux"),
    (r"no namespaces", "a host or container in which processes may make namespaces"),
    (r"no framework \S+: (?P<n>.+)", "{n}"),
    (r"could not import '(?P<n>\w+)", "pip install {n}"),
    (r"(?P<n>\w+) is not installed", "pip install {n}"),
)
"""causes of skips, and what would test what was skipped"""
SETTINGS = (
    "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # fmt: skip
"""of the environment: which instructions, and how many threads"""
os.environ["FORGE_CALIBRATION"] = ""  # plans rest on no runs of whoever tests
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # as in the processes of a run
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script starts `make test-all &` so. Processes of tests would ignore Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Make a module an error that imports triton before the tests of kernels are collected. They
    choose triton's interpreter by an environment variable before they import it; they would all
    fail, and not say why."""
    before = TRITON in sys.modules
    report = yield
    early = isinstance(collector, pytest.Module) and collector.path.parent.name < KERNELS
    if early and not before and TRITON in sys.modules:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} imports triton when it is collected: import it in a test"
        )
    return report


@pytest.hookimpl(tryfirst=True)  # before `-m` takes its choice
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give cases their marks, and put folders with long files first.

    Cases marked `deep` are those of `make deep`: others of their test run in `make test`. Files are
    handed out in their order: a long one at the end would leave the other worker without work.
    """
    covered: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("deep") and not DEEP:
            item.add_marker(pytest.mark.skip(reason="a case of `make deep` (FORGE_DEEP=1)"))
        if isinstance(item, pytest.Function) and item.get_closest_marker("cover"):
            covered.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in covered.values():
        mark = cases[0].get_closest_marker("cover")
        assert mark is not None
        kept = covering([values_of(case) for case in cases], *mark.args)
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.full)
    for item in items:
        if item.get_closest_marker("full") and "golden" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(
                f"{item.nodeid} is marked `full` and reads goldens: `make test` checks them"
            )
    items.sort(key=lambda item: RANK.get(item.path.parent.name, len(RANK)))


def values_of(case: pytest.Function) -> dict[str, int]:
    """Which object each parameter of a case is: cases share those of `parametrize`."""
    return {name: id(value) for name, value in case.callspec.params.items()}


def covering(cases: Sequence[dict[str, int]], strength: int = 1) -> set[int]:
    """Numbers of few cases in which every combination of `strength` values occurs that any has."""
    wanted = [set(itertools.combinations(sorted(c.items()), min(strength, len(c)))) for c in cases]
    missing, kept = set().union(*wanted), set[int]()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(wanted[number] & missing))
        kept.add(best)
        missing -= wanted[best]
    return kept


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


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Say of a failed run what numbers depend on, and of each what was skipped."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.section("machine")
        terminalreporter.write_line("\n".join(machine()))
    _skipped(terminalreporter)
    if ORPHANS:
        names = ", ".join(path.relative_to(GOLDEN).as_posix() for path in ORPHANS)
        terminalreporter.section("failed: golden files that no test asked for")
        terminalreporter.write_line(
            f"{names}; delete them, or compare them by the fixture `golden`"
        )


def machine() -> list[str]:
    """The CPU's model, those of its instructions that libraries choose by, and settings."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    chosen = re.compile(r"avx|amx|fma|bf16|fp16|sse4|asimd|sve")
    flags = facts.get("flags", facts.get("Features", "")).split()
    found = [f"cpu: {facts.get('model name', platform.processor() or platform.machine())}, "
             f"{len(os.sched_getaffinity(0))} cores"]  # fmt: skip
    found.append("instructions: " + " ".join(sorted(filter(chosen.match, flags))))
    for name in SETTINGS:
        found.append(f"{name}: {os.environ.get(name, 'not set')}")
    return found


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a whole, green run that left goldens unasked for."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["goldens"] = [path.relative_to(GOLDEN).as_posix() for path in ASKED]
        return
    whole = session.config.args in ([], ["compiler_tests"]) or session.config.args == [
        str(Path(__file__).parent)
    ]
    selected = session.config.option.keyword or session.config.option.markexpr not in ("", NOT_FULL)
    if exitstatus or not whole or selected or session.config.option.collectonly:
        return
    ORPHANS.extend(sorted(p for p in GOLDEN.rglob("*") if p.is_file() and p not in ASKED))
    if ORPHANS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skipped(terminalreporter: Any) -> None:
    """One line for each cause of skipped tests: how many, which, and what would test them."""
    causes: Counter[tuple[str, str]] = Counter()
    files: dict[tuple[str, str], set[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        cause = remedy(reason.removeprefix("Skipped: "))
        causes[cause] += 1
        files.setdefault(cause, set()).add(Path(report.nodeid.split("::")[0]).stem)
    if causes:
        terminalreporter.section("not tested")
    for cause, count in sorted(causes.items()):
        reason, would = cause
        terminalreporter.write_line(
            f"{count} in {', '.join(sorted(files[cause]))}: {reason}; to test: {would}"
        )


def remedy(reason: str) -> tuple[str, str]:
    """The cause of a skip, and what would test it."""
    for pattern, would in REMEDIES:
        if found := re.search(pattern, reason):
            return reason, would.format(**found.groupdict())
    return reason, "not said; add it to REMEDIES of compiler_tests/conftest.py"
