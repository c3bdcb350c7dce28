"""`forgec sweep FILE a=1,2 b=3,4`: a run for each combination of values, and a table of all.

    words --axes--> Point, ... --plan_file--> Planned, ... (all of them, or nothing starts)
        --Sweep--> runs in SWEEP/POINT --runs.compare--> table

Exit codes are those of `forgec run`: 1 errors in the file, 2 bad usage, 4 the environment cannot
satisfy a plan, 5 a run failed, 130 interrupted (75 by SIGTERM).
"""

from __future__ import annotations

import functools
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli import passes
from forgedsl.cli.overrides import UsageError, refuse
from forgedsl.cli.parser import Parser, at_least
from forgedsl.cli.sweep_points import (
    ENDED,
    Axis,
    Manifest,
    Point,
    axes_of,
    folder_of,
    points_of,
    short,
)
from forgedsl.diagnostics import counted
from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.cli.planning import Planned
    from forgedsl.cli.sweep_runs import Task
    from forgedsl.lower.build import Lowered
    from forgedsl.sizes.hosts import Host

MOST_VALUES = 6
"""maximum number of values per setting that the first line of the output lists"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parsed command line. `again` is the command that continues the sweep."""

    file: Path
    profile: str
    fixed: tuple[str, ...]
    set_files: tuple[Path, ...]
    axes: tuple[Axis, ...]
    at_once: int
    folder: Path
    stub: bool
    assume: tuple[str, ...]
    again: str


def parser() -> Parser:
    parser = Parser("sweep", command.__doc__, "FILE a=1,2 ...")
    passes.add_file(parser)
    passes.add_profile(parser)
    parser.add_overrides()
    parser.add_argument(
        "--seeds", type=at_least(1), metavar="N", help="run each point with the seeds 1 to N"
    )
    parser.add_argument(
        "--at-once", type=at_least(1), default=1, metavar="N", help="runs at the same time"
    )
    parser.add_argument(
        "--dir", type=Path, metavar="PATH",
        help="folder of the sweep; default: one in runs/, which the same command uses again",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="show the points and their plans, and start nothing"
    )
    parser.add_argument("--stub", action="store_true", help="rehearse each point (forgec run)")
    parser.add_argument(
        "--assume", action="append", metavar="NAME.FIELD=VALUE",
        help="with --stub: a latency, length or share that is simulated",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_words("format", ("text", "json"), "text", dest="format_", help="output format")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(functools.partial(command, words=tuple(arguments)), arguments)


def command(
    file: Path,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    seeds: int | None,
    at_once: int,
    dir: Path | None,
    dry_run: bool,
    stub: bool,
    assume: list[str] | None,
    quiet: bool,
    format_: str,
    words: tuple[str, ...],
) -> None:
    """Run FILE once for each combination of values, and compare the runs.

    All points are checked and planned before the first starts. The same command goes on after an
    interruption: runs that are done stay, one with a checkpoint is resumed, others begin anew.

    Examples:
      forgec sweep sums.forge trainer.optimizer.lr=1e-4,2e-4 group=4,8 --dry-run
      forgec sweep sums.forge trainer.optimizer.lr=1e-4,2e-4,4e-4 --seeds 3
      forgec sweep sums.forge group=4,8,16 schedule.steps=100 --at-once 2 --dir runs/groups
      forgec sweep sums.forge eps=0.1,0.2 --format json > sweep.json
    """
    from forgedsl.cli.compiling import unreadable

    try:
        if file.suffix != ".json" and (why := unreadable(file)):
            raise UsageError(why)
        axes, fixed = axes_of(set_ or [], seeds)
        if assume and not stub:
            raise UsageError("--assume is about a rehearsal: add --stub")
        if not axes:
            raise UsageError(
                "there is nothing to sweep: give a setting several values, such as "
                "trainer.optimizer.lr=1e-4,2e-4, or --seeds 3"
            )
        if file.suffix == ".json":
            raise UsageError(f"{file} is compiled and final; a sweep needs the .forge file")
        same = [profile, *fixed, *map(str, set_file or ()), *map(str, axes), str(stub)]
        asked = Asked(
            file=file, profile=profile, fixed=fixed, set_files=tuple(set_file or ()), axes=axes,
            at_once=at_once, folder=dir or folder_of(file, [*same, *(assume or ())]), stub=stub,
            assume=tuple(assume or ()), again=shlex.join(["forgec", "sweep", *words]),
        )  # fmt: skip
        raise SystemExit(sweep(asked, dry_run=dry_run, quiet=quiet, format_=format_))
    except UsageError as error:
        refuse("sweep", error)


def sweep(asked: Asked, *, dry_run: bool, quiet: bool, format_: str) -> int:
    """Plan every point, run what is not done, and print the table."""
    from forgedsl.cli.host import HERE, host_of
    from forgedsl.cli.run_lock import claim, release
    from forgedsl.cli.sweep_runs import Sweep

    points = points_of(asked.axes)
    host = host_of(HERE, "sweep")
    plans = plan_points(asked, points, host)
    if isinstance(plans, int):
        return plans
    gpus, visible = _devices(asked, plans, host)
    if not dry_run:
        _make(asked.folder)
        claim(asked.folder)
    manifest = Manifest.read(asked.folder, str(asked.file), rehearsal=asked.stub)
    for point, lowered in zip(points, plans, strict=True):
        manifest.add(point, lowered.job.content_hash)
    if dry_run:
        text = outlook(asked, points, plans)
        print(_as_json(asked, manifest, plans) if format_ == "json" else text)
        return 0
    manifest.write()

    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    say(f"{title(asked, points)}, in {asked.folder}")
    tasks = [_task(asked, *each) for each in zip(points, plans, strict=True)]
    made = Sweep(
        asked.folder, manifest, tasks, at_once=asked.at_once, gpus=gpus, visible=visible, say=say
    )
    stopped = made.run()
    release(asked.folder)
    mine = [manifest.entries[point.folder] for point in points]
    print(_as_json(asked, manifest, plans) if format_ == "json" else conclusion(asked, manifest))
    if stopped:
        return 130 if stopped == signal.SIGINT else 75
    return 5 if any(entry.state not in ENDED for entry in mine) else 0


def plan_points(asked: Asked, points: Sequence[Point], host: Host) -> tuple[Lowered, ...] | int:
    """Lint and plan all points. If some have errors, print them and return the exit code."""
    from forgedsl.cli.compiling import say_profile
    from forgedsl.cli.planning import plan_file
    from forgedsl.cli.submit import submitter

    seen: set[tuple[str, str]] = set()
    made: list[Lowered] = []
    codes: dict[str, int] = {}
    for point in points:
        planned = plan_file(
            asked.file, profile=asked.profile, overrides=(*asked.fixed, *point.overrides),
            set_files=asked.set_files, host=host,
        )  # fmt: skip
        if not seen:
            say_profile(planned.loaded, asked.profile, host)
        _print_new(planned, point, seen)
        if planned.lowered is None:
            codes[point.name] = planned.code
        else:
            made.append(planned.lowered)
    if codes:
        which = "; ".join(codes)
        said = f"{len(codes)} of {counted(len(points), 'point')} cannot run ({which})"
        print(f"forgec sweep: {said}: nothing was started", file=sys.stderr)
        return min(codes.values())
    by_job: dict[str, Point] = {}
    for point, lowered in zip(points, made, strict=True):
        if (other := by_job.setdefault(lowered.job.content_hash, point)) is not point:
            raise UsageError(f"{other.name} and {point.name} are the same run: leave out one")
    if submitter(made[0].job) is not None:
        raise UsageError(
            f"{made[0].job.name} is submitted to a scheduler, and a sweep runs on this machine; "
            "run it inside of an allocation, or launcher=local"
        )
    return tuple(made)


def _print_new(planned: Planned, point: Point, seen: set[tuple[str, str]]) -> None:
    """Print the findings of a point that no point before it has."""
    from forgedsl.diagnostics import Severity
    from forgedsl.report import full
    from forgedsl.report.style import style_for

    found = [d for d in planned.loaded.reporter if d.severity is not Severity.INFO]
    new = [d for d in found if (d.code, d.message) not in seen]
    seen |= {(d.code, d.message) for d in found} | {("", "")}
    if new:
        print(f"{point.name}:", file=sys.stderr)
        print(full.render(new, planned.loaded.sources, style_for(sys.stderr)), file=sys.stderr)


def _devices(asked: Asked, plans: Sequence[Lowered], host: Host) -> tuple[int, list[str]]:
    """Return the GPUs that each run takes, and the names of those that are visible.

    Raises:
        UsageError: the runs at the same time need more than there are.
    """
    from forgedsl.plan.host import gpu_mask

    each = max(_gpus(lowered) for lowered in plans)
    need = each * asked.at_once
    if asked.at_once > 1 and need > host.gpus and not asked.stub:
        most = max(1, host.gpus // each)
        raise UsageError(
            f"--at-once {asked.at_once} needs {counted(need, 'GPU')}, {each} for each run, and "
            f"this host has {host.gpus}: at most --at-once {most}"
        )
    return each, gpu_mask() or [str(number) for number in range(host.gpus)]


def _gpus(lowered: Lowered) -> int:
    return len({g for mesh in lowered.plan.meshes for p in mesh.places for g in p.gpus})


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error


def _task(asked: Asked, point: Point, lowered: Lowered) -> Task:
    """Return the task of a point. A run uses the compiled job, so later edits of the file do not
    change it. A rehearsal compiles the file again."""
    from forgedsl.cli.running import Prepared, write_run_dir
    from forgedsl.cli.sweep_runs import Task
    from forgedsl.sim.measure import estimate_of

    steps = lowered.job.schedule.steps
    if asked.stub:
        words = [str(asked.file), "--stub", "--profile", asked.profile]
        words += [word for path in asked.set_files for word in ("--set-file", str(path))]
        words += [f"--set={text}" for text in (*asked.fixed, *point.overrides)]
        words += [f"--assume={text}" for text in asked.assume]
        return Task(point=point, steps=steps, words=tuple(words), prepare=lambda folder: None)

    def prepare(folder: Path) -> None:
        inputs = {name: source for source, name in lowered.files}
        made = Prepared(job=lowered.job, inputs=inputs, estimate=estimate_of(lowered))
        write_run_dir(folder, made)

    job = asked.folder / point.folder / "job.json"
    return Task(point=point, steps=steps, words=(str(job),), prepare=prepare)


# ---- output


def title(asked: Asked, points: Sequence[Point]) -> str:
    """`sweep of 12 runs: lr 1e-06, 3e-06; group 4, 8; seed 1, 2, 3`."""
    said = []
    for axis in asked.axes:
        shown = [*axis.values[:MOST_VALUES], *["..."] * (len(axis.values) > MOST_VALUES)]
        said.append(f"{short(axis.path)} {', '.join(shown)}")
    kind = "rehearsal" if asked.stub else "run"
    return f"sweep of {counted(len(points), kind)}" + f": {'; '.join(said)}" * bool(said)


STATES = {"new": "-", "checkpoint": "to be resumed", "anew": "to begin anew"}


def outlook(asked: Asked, points: Sequence[Point], plans: Sequence[Lowered]) -> str:
    """The points with what their plans say, for `--dry-run`."""
    from forgedsl.cli.sweep_runs import look
    from forgedsl.plan.cost import time_text
    from forgedsl.plan.text import table

    names = [short(axis.path) for axis in asked.axes]
    rows = [(*names, "steps", "step", "run", "GPUs", "state")]
    total = 0.0
    for point, lowered in zip(points, plans, strict=True):
        steps, step = lowered.job.schedule.steps, lowered.plan.cost.step_seconds
        state, _ = look(asked.folder / point.folder, steps)
        total += 0.0 if state in ENDED else step * (steps or 0)
        whole = time_text(step * steps) if steps else "-"
        rows.append((
            *point.settings.values(), str(steps or "-"), time_text(step), whole,
            str(_gpus(lowered)), STATES.get(state, state),
        ))  # fmt: skip
    last = f"estimated: {time_text(total / asked.at_once)} for what is not done"
    if asked.at_once > 1:
        last += f", {asked.at_once} at once"
    lines = [title(asked, points), "", *table(rows), "", last, f"folder: {asked.folder}"]
    return "\n".join([*lines, "nothing was started"])


def conclusion(asked: Asked, manifest: Manifest) -> str:
    """Return the summary: progress, a table of finished runs, and how to continue."""
    from forgedsl.runs import compare

    entries = list(manifest.entries.values())
    done = [entry for entry in entries if entry.state in ENDED]
    lines = []
    if len(done) > 1 and not asked.stub:
        lines += [compare.render(compare.compare([asked.folder / e.folder for e in done])), ""]
    lines.append(f"{len(done)} of {counted(len(entries), 'run')} done, in {asked.folder}")
    if asked.stub:
        lines.append("rehearsals have nothing to compare")
    lines += [
        f"  {e.name}: {e.state}{f', {e.message}' if e.message else ''}"
        for e in entries if e.state not in ENDED
    ]  # fmt: skip
    if len(done) < len(entries):
        lines.append(f"go on with: {asked.again}")
    return "\n".join(lines)


def _as_json(asked: Asked, manifest: Manifest, plans: Sequence[Lowered]) -> str:
    """The folder, the points with their plans and states, and the comparison of those done."""
    from forgedsl.runs import compare

    by_job = {lowered.job.content_hash: lowered for lowered in plans}
    document = manifest.document()
    for point in document["points"]:
        if (lowered := by_job.get(point["job"])) is not None:
            point["plan"] = {
                "step_seconds": lowered.plan.cost.step_seconds,
                "steps": lowered.job.schedule.steps, "gpus": _gpus(lowered),
            }  # fmt: skip
    done = [asked.folder / e.folder for e in manifest.entries.values() if e.state in ENDED]
    found: dict[str, Any] = {"folder": str(asked.folder), **document}
    if len(done) > 1 and not asked.stub:
        found["comparison"] = compare.as_data(compare.compare(done))
    return json.dumps(found, indent=1)
