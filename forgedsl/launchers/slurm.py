"""Launcher `slurm`: a script for sbatch, which runs job.json in the allocation it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgedsl.launchers.base import (
    GIB,
    Allocation,
    Launcher,
    Manifest,
    keyword,
    rendered,
    signature,
)
from forgedsl.records import replace
from forgedsl.settings import BOOL, DURATION, STR, Parameter, Type

_TEXT = replace(STR, optional=True)
WORDS = ("partition", "account", "qos", "constraint")


def script(allocation: Allocation, args: Mapping[str, Any]) -> str:
    """The script for `sbatch`."""
    import shlex

    options: list[tuple[str, Any]] = [(name, args[name]) for name in WORDS if name in args]
    if "time" in args:
        options.append(("time", clock(args["time"])))
    if allocation.cpus is not None:
        options.append(("cpus-per-task", allocation.cpus))
    if args.get("exclusive", True):
        options += [("exclusive", None), ("mem", "0")]  # all cores; all memory of a host
    elif allocation.memory is not None:
        options.append(("mem", f"{allocation.memory // GIB}G"))
    options.append(("signal", f"B:TERM@{allocation.grace}"))
    options += [_option(text) for text in args.get("options") or ()]
    folder = f"runs/{allocation.name}-${{SLURM_JOB_ID:?sbatch sets it}}"
    return rendered(
        "job.sbatch.j2",
        allocation,
        options=options,
        setup=args.get("setup") or (),
        container=args.get("container") or "",
        path=shlex.quote(allocation.path) if allocation.path else "",
        command=allocation.command or f'forgec run job.json --run-dir "{folder}"',
        output=allocation.output or "%x-%j.out",
        note="" if allocation.command else "Submit it in the folder of job.json: sbatch job.sbatch",
    )


def clock(seconds: float) -> str:
    """Format a time for Slurm: `1-12:30:00`; days are left out if there are none."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"


def _option(text: str) -> tuple[str, str | None]:
    """Return an option line, from `--mail-type=END` or `mail-type=END`."""
    name, equals, value = text.lstrip("-").partition("=")
    return name, value if equals else None


LAUNCHER = Launcher(
    signature=signature(
        "slurm",
        "a Slurm allocation",
        Parameter(name="partition", type=STR),
        keyword("time", replace(DURATION, optional=True)),
        keyword("account", _TEXT),
        keyword("qos", _TEXT),
        keyword("constraint", _TEXT),
        keyword("exclusive", BOOL, True),
        keyword("options", Type(base="list", item=STR, optional=True)),
        keyword("setup", Type(base="list", item=STR, optional=True)),
        keyword("container", _TEXT),
    ),
    max_hosts=None,
    allocation="SLURM_JOB_ID",
    submit="sbatch",
    manifest=Manifest(emit="sbatch", file="job.sbatch", what="a script for Slurm", text=script),
)
