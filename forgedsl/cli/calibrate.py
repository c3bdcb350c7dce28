"""`forgec calibrate RUN`: correct the plan's estimates for this kind of device by a run's timings.

    RUN --measure--> entry -> calibration.json, which all planning commands read (cli/host.py)

The file is $FORGE_CALIBRATION, else forgedsl/calibration.json in the user's configuration folder.
If $FORGE_CALIBRATION is empty, no file is used. Exit codes: 0; 2 the run has no usable timings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forgedsl.cli.parser import Parser
from forgedsl.errors import write_text


def parser() -> Parser:
    parser = Parser("calibrate", command.__doc__, "RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help=("write to this calibration file")
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(run: Path, out: Path | None) -> None:
    """Correct the estimates of plans by the timings of RUN, for its kind of device.

    Examples:
      forgec calibrate runs/grpo_math-20261120-120000
      forgec calibrate runs/last -o h200.json && FORGE_CALIBRATION=h200.json forgec plan x.forge
    """
    from forgedsl.plan.cost import time_text
    from forgedsl.sim.calibrate import CalibrationError, usable_run
    from forgedsl.sim.measure import measure
    from forgedsl.sim.reward_times import reward_seconds

    path = out or calibration_path()
    try:
        if path is None:
            raise CalibrationError("FORGE_CALIBRATION is empty; name a file with -o")
        found = measure(run)
        rewards = reward_seconds(usable_run(run))
        old = read_calibration(path) or {}
    except (CalibrationError, ValueError) as error:
        print(f"forgec calibrate: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    news = {**found.known, "rewards": rewards}
    known = {part: {**old.get(part, {}), **new} for part, new in news.items()}
    write_text(path, json.dumps(known, indent=1) + "\n")
    before, took, after = map(time_text, found[1:])
    print(f"a step of {run} took {took}; plans estimated {before} so far, and {after} from now on")
    for kind, entry in found.known["devices"].items():
        rows = ", ".join(f"{key} {value:.3g}" for key, value in entry["times"].items())
        print(f"{kind}, measured time / estimated time: {rows}")
    for calls in rewards.values():
        rows = ", ".join(f"{name} {time_text(value)}" for name, value in calls.items())
        print(f"a call of a reward: {rows}")
    print(path)


def calibration_path() -> Path | None:
    """Return the calibration file that plans read, if any."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    given = os.environ.get("FORGE_CALIBRATION", Path(base) / "forgedsl" / "calibration.json")
    return Path(given) if given else None


def read_calibration(path: Path | None) -> dict[str, Any] | None:
    """Read a calibration file; None if there is none. Raises ValueError."""
    if path is None or not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not {"devices", "lengths"} <= found.keys():
        raise ValueError(
            f"{path} is not a calibration file; remove it, or name another file with -o"
        )
    return found
