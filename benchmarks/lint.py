"""How long `forgec lint` takes, beside the start of the libraries it is built on.

    python benchmarks/lint.py [--repeats N] [--best] [--write]

--best: the fastest of the repeats, for a machine on which others work too; --write: the table of
docs/benchmarks.md.

Every row but the last is of fresh processes, run by turns with the baseline of the same run,
`python -c "import lark, typer"`: the median of wall and processor time (user + system), their
ratio to the baseline's, and the peak of memory. Byte code is kept in a folder of the run, as an
installed package has it; the tables of the grammar and the standard library lie in the user's
cache, as they do after the first call. Programs: benchmarks/forge_programs.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import forge_programs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/benchmarks.md"
BASELINE = 'python -c "import lark, typer"'
GRPO = str(ROOT / "pipelines/grpo_math.forge")
LONG = (25_000, 50_000, 100_000)
NUM_PYTHON = 50


@dataclass
class Row:
    """One command; `once` for those that take long. Samples are (wall, processor time), in s."""

    name: str
    command: list[str]
    once: bool = False
    samples: list[tuple[float, float]] = field(default_factory=list)
    memory: int = 0
    pick: Callable[[Iterable[float]], float] = statistics.median

    def run(self, env: dict[str, str]) -> tuple[float, float]:
        start = time.perf_counter()
        with open(os.devnull, "wb") as nowhere:
            child = subprocess.Popen(self.command, env=env, stdout=nowhere, stderr=nowhere)
            _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            raise SystemExit(f"{self.name}: exit code {child.returncode}")
        self.memory = max(self.memory, used.ru_maxrss * 1024)
        return time.perf_counter() - start, used.ru_utime + used.ru_stime

    @property
    def wall(self) -> float:
        return self.pick(wall for wall, _ in self.samples)

    @property
    def processor(self) -> float:
        return self.pick(processor for _, processor in self.samples)


def rows(folder: Path) -> list[Row]:
    """The baseline first."""
    lint = [sys.executable, "-m", "forgedsl.cli.main", "lint"]

    def program(kind: str, num_lines: int) -> str:
        path = folder / f"{kind}_{num_lines}.forge"
        path.write_text(getattr(forge_programs, kind)(num_lines), "utf-8")
        return str(path)

    beside = folder / "python"
    beside.mkdir()
    forge_programs.folder(beside, NUM_PYTHON)
    return [
        Row(BASELINE, [sys.executable, "-c", "import lark, typer"]),
        Row("forgec lint pipelines/grpo_math.forge", [*lint, GRPO]),
        Row("2,500 lines of all kinds", [*lint, program("mixed", 2500)]),
        Row("2,500 lines, 337 different losses", [*lint, program("losses", 2500)]),
        Row(f"5 pipelines that import {NUM_PYTHON} Python files", [*lint, str(beside)]),
        *(Row(f"{n:,} lines of all kinds", [*lint, program("mixed", n)], once=True) for n in LONG),
        Row("forgec --help", [sys.executable, "-m", "forgedsl.cli.main", "--help"]),
    ]


def measure(found: list[Row], repeats: int, folder: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = folder
    for turn in range(repeats + 1):
        for row in found:
            if turn == 0 and row.once:
                continue
            if turn > 1 and row.once:
                continue
            sample = row.run(env)
            if turn:  # the first fills the caches
                row.samples.append(sample)


def table(found: list[Row], repeats: int, best: bool) -> str:
    """The section of the page."""
    how, option = ("fastest", " --best") if best else ("median", "")
    base = found[0]
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    lines = [
        f"{cpu_name()}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}, {how} of {repeats} (one run from {LONG[0]:,} lines on):",
        "",
        f"    python benchmarks/lint.py --repeats {repeats}{option}",
        "",
        "| | wall | processor | wall / baseline | processor / baseline | memory |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {f'`{row.name}`' if 'forgec' in row.name or row is base else row.name} "
        f"| {shown(row.wall)} | {shown(row.processor)} | {row.wall / base.wall:.2f} "
        f"| {row.processor / base.processor:.2f} | {row.memory / 2**20:.0f} MiB |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


def shown(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def write(text: str) -> None:
    """Put the table between the marks of the page."""
    page = PAGE.read_text("utf-8")
    start, end = "<!-- lint: table -->\n", "<!-- lint: end -->\n"
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{start}{text}{end}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time forgec lint.")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--best", action="store_true", help="the fastest instead of the median")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder))
        for row in found if options.best else ():
            row.pick = min
        measure(found, options.repeats, folder)
    text = table(found, options.repeats, options.best)
    print(text, end="")
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
