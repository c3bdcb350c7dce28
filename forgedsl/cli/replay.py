"""`forgec replay RUN`: repeat a recorded optimizer step, for example on another number of ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from forgedsl.cli.parser import Parser, whole
from forgedsl.errors import writing

BOTH = ("recorded", "replayed")
DEVICES: dict[str, Literal["cpu", "gpu"]] = {"cpu": "cpu", "gpu": "gpu"}


def parser() -> Parser:
    parser = Parser("replay", command.__doc__, "RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--step", type=whole, default=1, metavar="N", help="number of the recorded step"
    )
    parser.add_argument("--procs", type=whole, metavar="N", help="ranks of the trainer")
    parser.add_argument(
        "--device", metavar="cpu|gpu", help="device to run on; default: as in the run"
    )
    parser.add_argument("--out", type=Path, metavar="PATH", help="where the weights go")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(run: Path, step: int, procs: int | None, device: str | None, out: Path | None) -> None:
    """Repeat a recorded step and print what it returned then and now, as JSON.

    The log-probs of its tokens are in result.json, beside the weights.

    A run keeps the batch of its first step; `forgec run --record-batches N` keeps N.

    Examples:
      forgec replay runs/grpo_math-20261120-120000
      forgec replay runs/grpo_math-20261120-120000 --procs 2
      forgec replay runs/grpo_math-20261120-120000 --device cpu
    """
    from forgedsl.runs.checkpoints import no_run

    if not (run / "job.json").is_file():
        print(f"forgec replay: {no_run(run)}", file=sys.stderr)
        raise SystemExit(2)
    from forgedsl.diagnostics import counted
    from forgedsl.errors import LaunchError, RunError
    from forgedsl_runtime.recording import FOLDER
    from forgedsl_runtime.replay import replay
    from forgedsl_runtime.stderr import native_stderr

    if not (run / FOLDER / f"step-{step}.json").is_file():
        print(f"forgec replay: {_not_recorded(run, step)}", file=sys.stderr)
        raise SystemExit(2)
    if device not in (None, *DEVICES):
        print(f"forgec replay: --device is cpu or gpu, not {device}", file=sys.stderr)
        raise SystemExit(2)
    chosen = DEVICES[device] if device else None
    where = f"-{device}" if device else ""
    target = out or run / "replays" / f"step-{step}-procs-{procs or 'same'}{where}"
    ranks = "" if procs is None else f" with {counted(procs, 'rank')}"
    print(f"starting the trainer{ranks} for step {step}", file=sys.stderr, flush=True)
    try:
        with native_stderr(target / "controller.log"):
            found = replay(run, step, procs=procs, out=target, device=chosen)
    except (LaunchError, RunError) as error:
        print(f"forgec replay: {error}", file=sys.stderr)
        raise SystemExit(4 if isinstance(error, LaunchError) else 5) from error
    told = _without_logprobs(found, target / "result.json")
    print(json.dumps(told | {"weights": str(target / "weights")}, indent=1, ensure_ascii=False))


def _not_recorded(run: Path, step: int) -> str:
    """Say why a step has no recording."""
    from forgedsl_runtime.recording import FOLDER

    kept = sorted(int(path.stem[5:]) for path in (run / FOLDER).glob("step-*.json"))
    metrics = run / "metrics.jsonl"
    if not kept and (not metrics.is_file() or not metrics.read_text("utf-8").strip()):
        return f"{run} has made no step, so none is recorded"
    there = f"only {', '.join(map(str, kept))}" if kept else "none"
    return (
        f"step {step} of {run} was not recorded ({there}); `forgec run --record-batches N` "
        "records N steps"
    )


def _without_logprobs(found: dict[str, Any], result: Path) -> dict[str, Any]:
    """Write `found` to `result`, and return it with the name of that file for its log-probs, of
    which there is one for each token."""
    with writing(result):
        result.write_text(json.dumps(found), encoding="utf-8")
    told = {
        name: {k: v for k, v in part.items() if k != "logprobs"} if name in BOTH else part
        for name, part in found.items()
    }
    return told | {"logprobs": str(result)}
