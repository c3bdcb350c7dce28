"""`make deep`: the tests that have long counts, with these, and docs/deep.md with what came out.

    FORGE_DEEP=1 pytest MODULES, twice --junitxml--> totals, folders, slowest --> docs/deep.md

MODULES are those that ask for FORGE_DEEP, or have cases marked `deep`; all others do in `make test`
what they can.
Files run side by side on all cores, then those on real meshes one after the other.
Further arguments go to pytest; a run that was narrowed by them leaves docs/deep.md alone.
"""

from __future__ import annotations

import os
import platform
import re
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
    on_meshes = [name for name in modules() if name.split("/")[1] in ("deep", "runtime")]
    others = [name for name in modules() if name not in on_meshes]
    cores = ["-n", str(os.cpu_count()), "--dist", "loadfile"]
    codes, suites = [], []
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        for names, how in ((others, cores), (on_meshes, [])):
            command = [sys.executable, "-m", "pytest", *names, f"--junitxml={junit}", *how]
            env = os.environ | {"FORGE_DEEP": "1"}
            command += ["-p", "no:cacheprovider", *extra]
            codes.append(subprocess.run(command, cwd=ROOT, env=env, check=False).returncode)
            suites += ET.parse(junit).findall(".//testsuite")
    if not extra:
        (ROOT / "docs/deep.md").write_text(summary(suites), encoding="utf-8")
    return max(codes)


def modules() -> list[str]:
    """Test modules whose counts FORGE_DEEP raises."""
    found = sorted((ROOT / "compiler_tests").rglob("test_*.py"))
    asks = re.compile(r"FORGE_DEEP|mark\.deep\b")
    return [str(p.relative_to(ROOT)) for p in found if asks.search(p.read_text("utf-8"))]


def summary(suites: list[ET.Element]) -> str:
    """The page: totals, then folders, then the slowest tests."""

    def total(*names: str) -> float:
        return sum(float(suite.get(name, 0)) for suite in suites for name in names)

    cases = [case for suite in suites for case in suite.findall("testcase")]
    bad, skipped = int(total("failures", "errors")), int(total("skipped"))
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
        f"{skipped} skipped in {total('time') / 60:.1f} min.",
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
