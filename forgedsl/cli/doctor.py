"""`forgec doctor [FILE]`: what this machine has, and what it lacks to run a file.

machine.py                      --Check...--> a line each, with remedies
FILE --compile--> Lowered --file_checks--> Check... --> more lines

Nothing is started and nothing is downloaded. `forgec run FILE --dry-run` goes further: it downloads
models and data, and calls every reward once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli import passes
from forgedsl.cli.machine import (
    GIB,
    LACKS,
    NOTE,
    OK,
    Check,
    installed,
    machine_checks,
    memory,
    unreachable,
)
from forgedsl.cli.parser import Parser
from forgedsl.cli.waiting import waiting
from forgedsl.diagnostics import counted
from forgedsl.errors import ForgeError

if TYPE_CHECKING:
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def parser() -> Parser:
    parser = Parser("doctor", command.__doc__, "[FILE]", num_words=1)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a .forge file")
    passes.add_profile(parser)
    parser.add_overrides()
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    file: Path | None,
    profile: str,
    set_: list[str] | None,
    set_file: list[Path] | None,
    format_: Format,
) -> int:
    """Say what this machine has and lacks for runs, and what to do about it.

    Without FILE: system, packages, GPUs, memory, disks, limits, network. With FILE: also what this
    file needs. Nothing is started or downloaded. The exit code is 4 if something is lacking.

    Examples:
      forgec doctor
      forgec doctor pipelines/grpo_math.forge
      forgec doctor pipelines/grpo_math.forge --profile cluster
      forgec doctor --format json
    """
    lowered = None
    if file is not None:
        from forgedsl.cli.planning import compile_file

        compiled = compile_file(
            file, profile=profile, overrides=tuple(set_ or ()), set_files=tuple(set_file or ())
        )
        if isinstance(compiled, int):
            return compiled
        lowered = compiled
    checks = []
    found = _all(lowered)
    what = "the machine" if lowered is None else f"the machine, and what {file} needs"
    while True:
        with waiting(f"checking {what}"):
            check = next(found, None)
        if check is None:
            break
        checks.append(check)
        if format_ is Format.TEXT:
            _print(check)
    lacking = [check.name for check in checks if check.state == LACKS]
    if format_ is Format.JSON:
        _print_json(checks)
    elif lacking:
        print(f"lacking: {', '.join(dict.fromkeys(lacking))}")
    else:
        what = "runs" if lowered is None else f"a run of {file}"
        print(f"nothing is lacking for {what}")
    return 4 if lacking else 0


def _all(lowered: Lowered | None) -> Iterator[Check]:
    yield from machine_checks()
    if lowered is not None:
        yield from file_checks(lowered)


def _print(check: Check) -> None:
    print(f"  {check.name:<11} {check.state:<6} {check.text}")
    if check.remedy:
        print(f"{20 * ' '}-> {check.remedy}")
    sys.stdout.flush()


def _print_json(checks: list[Check]) -> None:
    import json

    fields = ("name", "state", "text", "remedy")
    rows = [{name: getattr(check, name) for name in fields} for check in checks]
    print(json.dumps(rows, indent=1))


# ---- what a file needs


def file_checks(lowered: Lowered) -> Iterator[Check]:
    """Check what a job needs on this machine."""
    from forgedsl.cli.inputs import copy_inputs

    job = lowered.job
    yield _devices(job)
    yield _host_memory(lowered)
    with tempfile.TemporaryDirectory(prefix="forgec-doctor-") as folder:
        copy_inputs({name: path for path, name in lowered.files}, Path(folder), link=True)
        yield from _models(job, Path(folder))
        yield from _environments(job, Path(folder))
    yield from _inputs(lowered)
    yield from _programs(job)
    yield from _keys(job)
    yield from _endpoints(job)
    yield from _trackers(job)


def _devices(job: Job) -> Check:
    from forgedsl.cli.dry_run import check_host

    try:
        return Check(name="devices", state=OK, text=check_host(job))
    except ForgeError as error:
        return Check(
            name="devices", state=LACKS, text=str(error),
            remedy="choose a profile that fits this host with --profile, or run on another host",
        )  # fmt: skip


def _host_memory(lowered: Lowered) -> Check:
    """Compare the memory that the plan expects on this host with what is available now."""
    need = sum(store.bytes for store in lowered.plan.memory.stores if store.kind == "host")
    _, free = memory()
    text = f"the processes of the run take about {need / GIB:.1f} of {free / GIB:.1f} GiB available"
    if need > free:
        return Check(
            name="run memory", state=LACKS, text=text,
            remedy="end other programs, or choose a smaller model or smaller batches; "
            "`forgec plan FILE` shows what takes how much",
        )  # fmt: skip
    return Check(name="run memory", state=OK, text=text)


def _models(job: Job, folder: Path) -> Iterator[Check]:
    """Check which models are on this machine, and if the disk has room for checkpoints of them."""
    from forgedsl.lower import job as spec
    from forgedsl_runtime.disk_space import check_room
    from forgedsl_runtime.models import NotAvailableOffline, check_model_adapter, resolve_model

    local = True
    for name, model in job.models.items():
        source = model.source
        of_hub = isinstance(source, spec.HfSource)
        fetched = of_hub or isinstance(model.adapter, spec.HfSource)
        plain = "random weights" if source.kind == "random" else "local files"
        try:
            found = resolve_model(job, name, folder, folder, offline=True)
            if of_hub and not [*found.glob("*.safetensors")]:
                raise NotAvailableOffline("its weights are not in the cache")
            check_model_adapter(job, name, found, folder, offline=True)
        except ForgeError as why:
            local = False
            if fetched and isinstance(why, NotAvailableOffline):
                yield Check(
                    name="models", state=NOTE, text=f"{name}: {why}",
                    remedy="the start of a run downloads it from the hub",
                )  # fmt: skip
            else:
                yield Check(name="models", state=LACKS, text=str(why), remedy="correct its source")
        else:
            yield Check(name="models", state=OK, text=f"{name}: {getattr(source, 'id', plain)}")
    if local:
        try:
            text = check_room(job, folder, folder, Path("runs").absolute())
            yield Check(name="run folder", state=OK, text=text)
        except ForgeError as why:
            yield Check(name="run folder", state=LACKS, text=str(why))


def _inputs(lowered: Lowered) -> Iterator[Check]:
    """Read the data that is here, and load the rewards: their packages must be installed."""
    from forgedsl.cli.data_checks import InputChecker

    job = lowered.job
    acting = frozenset(name for name, reward in job.rewards.items() if reward.kind == "python")
    looks, unloaded, _ = InputChecker()(lowered, acting)
    for name, look in looks.items():
        if look.refused:
            yield Check(name="data", state=LACKS, text=look.refused)
        elif look.rows is None or look.unread:
            yield Check(
                name="data", state=NOTE, text=f"{name}: {look.unread or 'its rows are streamed'}",
                remedy="the start of a run reads it; `forgec run FILE --dry-run` tries that",
            )  # fmt: skip
        else:
            text = f"{name}: {counted(look.rows, 'row')}"
            yield Check(name="data", state=OK, text=", ".join(filter(None, (text, look.left_out))))
    for problem in unloaded.values():
        yield Check(name="rewards", state=LACKS, text=problem, remedy=_correct(problem))
    here = [name for name, reward in job.rewards.items() if reward.kind != "endpoint"]
    if here and not unloaded:
        yield Check(name="rewards", state=OK, text=", ".join(here))


def _correct(problem: str) -> str:
    """Return the remedy of Python that cannot be loaded; a missing package has one in its text."""
    return "" if "pip install" in problem else "correct its Python"


def _environments(job: Job, folder: Path) -> Iterator[Check]:
    """Load the classes of environments and agents: their packages must be installed."""
    if all(spec.program is not None for spec in job.environments.values()):
        return
    from forgedsl.cli.trying import load_environments

    for name, problem in load_environments(job, folder).items():
        if problem:
            yield Check(name="environment", state=LACKS, text=problem, remedy=_correct(problem))
        else:
            yield Check(name="environment", state=OK, text=name)


def _programs(job: Job) -> Iterator[Check]:
    """Look for the programs of agents. They are not started, so their packages are not known."""
    for name, spec in job.environments.items():
        if spec.program is None:
            continue
        program = spec.program.command[0]
        if shutil.which(program) is None:
            yield Check(
                name="agents", state=LACKS, text=f"{name}: there is no program {program}",
                remedy="install it, or name another one in the file",
            )  # fmt: skip
            continue
        yield Check(
            name="agents", state=NOTE, text=f"{name}: {program} is here, but it was not started",
            remedy="`forgec run FILE --dry-run` plays a turn, which shows if it has its packages",
        )  # fmt: skip


def _keys(job: Job) -> Iterator[Check]:
    """Check the environment variables that hold keys of judges."""
    for name, reward in job.rewards.items():
        key = reward.args.get("key") if reward.kind == "endpoint" else None
        if key is None:
            continue
        if os.environ.get(key):
            yield Check(name="keys", state=OK, text=f"{key} is set, for reward {name}")
        else:
            yield Check(
                name="keys", state=LACKS, text=f"{key} is not set; reward {name} needs it",
                remedy=f"export {key}=... before the run",
            )  # fmt: skip


def _endpoints(job: Job) -> Iterator[Check]:
    """Connect to the endpoints of judges; they are not asked for a grade."""
    of: dict[str, list[str]] = {}
    for name, reward in job.rewards.items():
        if reward.kind == "endpoint":
            of.setdefault(reward.args["url"], []).append(name)
    for url, names in of.items():
        said = f"{url}, for reward {', '.join(names)}"
        if why := unreachable(url):
            yield Check(
                name="judges", state=LACKS, text=f"{said}, cannot be reached ({why})",
                remedy="start it, or correct `url` of its service",
            )  # fmt: skip
        else:
            yield Check(
                name="judges", state=OK, text=f"{said}, can be reached; it is asked for a grade by "
                "`forgec run FILE --dry-run`",
            )  # fmt: skip


def _trackers(job: Job) -> Iterator[Check]:
    """Check the packages of tracking services. A run goes on without them."""
    from forgedsl_runtime.readers.trackers.registry import TRACKERS

    for tracker in TRACKERS:
        if tracker.settings(job.logging) is None:
            continue
        if not installed(tracker.package):
            yield Check(
                name="tracking", state=NOTE, text=f"{tracker.package} is not installed, so nothing "
                "is sent",
                remedy=f"{sys.executable} -m pip install {tracker.package}",
            )  # fmt: skip
        else:
            version = installed(tracker.package)
            yield Check(name="tracking", state=OK, text=f"{tracker.package} {version}")
