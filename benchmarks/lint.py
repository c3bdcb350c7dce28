"""How long `forgec lint` takes, beside the start of the libraries it is built on.

    python benchmarks/lint.py [REPEATS]

Each figure is of fresh processes, run by turns: median and least of the wall times. The baseline is
`python -c "import lark, typer"` in the same run. Byte code is kept in a folder of the run, as an
installed package has it. Parsing is timed in one process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRPO = str(ROOT / "pipelines/grpo_math.forge")
LOSS = """
loss pg_{i}(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {{
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  gain  = min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv)
  minimize token_mean(-gain, mask)
  report gain = token_mean(gain, mask)
}}
"""


def program(num_lines: int) -> str:
    """grpo_math followed by losses until it has that many lines."""
    text = Path(GRPO).read_text("utf-8")
    missing = num_lines - text.count("\n")
    return text + "".join(LOSS.format(i=i) for i in range(missing // LOSS.count("\n")))


def wall(command: list[str], env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return time.perf_counter() - start


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder, "long.forge")
        long.write_text(program(2500), "utf-8")
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = folder
        lint = [python, "-m", "forgedsl.cli.main", "lint"]
        commands = {
            'python -c "import lark, typer"': [python, "-c", "import lark, typer"],
            "forgec lint pipelines/grpo_math.forge": [*lint, GRPO],
            "forgec lint, 2,500 lines": [*lint, str(long)],
            "forgec lint --profile none, 2,500 lines": [*lint, "--profile", "none", str(long)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(repeats + 1):
            for name, command in commands.items():
                taken = wall(command, env)
                if turn:  # the first fills the caches
                    times[name].append(taken)
    base = statistics.median(times['python -c "import lark, typer"'])
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {repeats} repeats")
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name}: median {1e3 * median:.0f} ms, least {1e3 * min(found):.0f} ms, "
              f"{median / base:.2f} x")  # fmt: skip
    from forgedsl.syntax import quick

    for num_lines in (2_500, 25_000, 100_000):
        text = program(num_lines)
        start = time.perf_counter()
        if quick.parse(text, "long.forge", "start") is None:
            raise SystemExit("the program of the benchmark does not parse")
        print(f"parse {num_lines:,} lines: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
