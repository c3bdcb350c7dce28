"""`make deep`: the tests that have long counts, with these, and docs/deep.md with what came out.

    FORGE_DEEP=1 pytest MODULES --junitxml--> totals, folders, slowest --> docs/deep.md

MODULES are those that ask for FORGE_DEEP; all others do in `make test` what they can.
Tests run side by side on all cores, those on real meshes one after the other.
Further arguments go to pytest; a run that was narrowed by them leaves docs/deep.md alone.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOWEST = 10


def main() -> int:
    """Run, summarise, return pytest's exit code."""
    extra = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        cores = ["-n", str(os.cpu_count()), "--dist", "loadgroup"]
        command = [sys.executable, "-m", "pytest", *modules(), f"--junitxml={junit}"]
        command += [*cores, "-p", "no:cacheprovider", *extra]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"FORGE_DEEP": "1"}, check=False)
        if not extra and junit.exists():
            (ROOT / "docs/deep.md").write_text(summary(ET.parse(junit)), encoding="utf-8")
    return done.returncode


def modules() -> list[str]:
    """Test modules whose counts FORGE_DEEP raises."""
    found = sorted((ROOT / "compiler_tests").rglob("test_*.py"))
    return [str(p.relative_to(ROOT)) for p in found if "FORGE_DEEP" in p.read_text("utf-8")]


def summary(tree: ET.ElementTree) -> str:
    """The page: totals, then folders, then the slowest tests."""
    suite = tree.getroot().find("testsuite")
    assert suite is not None, "pytest writes one testsuite"
    cases = suite.findall("testcase")
    bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped = int(suite.get("skipped", 0))
    folders = Counter(case.get("classname", "").split(".")[1] for case in cases)
    slowest = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:SLOWEST]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lines = [
        "# Last result of `make deep`",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores: {len(cases) - bad - skipped} passed, {bad} failed, "
        f"{skipped} skipped in {float(suite.get('time', 0)) / 60:.1f} min.",
        "",
        "| folder | tests |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(folders.items())),
        "",
        "| slowest | s |",
        "|---|---|",
        *(
            f"| {c.get('classname', '').removeprefix('compiler_tests.')}.{c.get('name', '')} "
            f"| {float(c.get('time', 0)):.1f} |"
            for c in slowest
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
