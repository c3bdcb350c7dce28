"""`forgec run --dry-run FILE`: does everything that a run does before it starts processes.

    Prepared --> host, packages, models, data, rewards, run folder --> a line each, exit 0 or 4

The job is checked as at a launch. Models and data of the hub are downloaded into the caches. The
checks use a temporary run folder.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.running import Prepared, RunOptions, has_begun, write_run_dir
from forgedsl.cli.waiting import waiting
from forgedsl.diagnostics import counted
from forgedsl.errors import ForgeError, LaunchError

if TYPE_CHECKING:
    from forgedsl.cli.data_checks import RewardTrial
    from forgedsl.lint.deep import DatasetCheck
    from forgedsl.lower.job import Job


class Doubtful(str):
    """Result of a check that deserves a look, though a run would start."""


def dry_run(prepared: Prepared, request: RunOptions) -> int:
    """Print the results; return 4 if something would keep the run from starting."""
    job = prepared.job
    failed = 0
    seen: dict[str, DatasetCheck] = {}
    with tempfile.TemporaryDirectory(prefix="forgec-dry-run-") as name:
        folder = Path(name)
        write_run_dir(folder, prepared)
        checks: tuple[tuple[str, Callable[[], str]], ...] = (
            ("host", lambda: check_host(job)),
            ("packages", lambda: _packages(job)),
            ("models", lambda: _models(job, folder)),
            ("data", lambda: _data(job, folder, seen)),
            ("rewards", lambda: _rewards(job, folder, seen)),
            *([("losses", lambda: _losses(job, folder))] if _in_python(job) else ()),
            *(
                [("environments", lambda: _environments(job, folder, seen))]
                if job.environments
                else ()
            ),
            ("run folder", lambda: _run_folder(request, job, folder)),
        )
        first_with: dict[str, str] = {}
        for what, check in checks:
            try:
                with waiting(f"checking {what}"):
                    result = check()
                state = "warning" if isinstance(result, Doubtful) else "ok"
                print(f"  {what:<12} {state:<7} {result}", flush=True)
            except (ForgeError, ModuleNotFoundError) as error:
                failed += 1
                first = first_with.setdefault(str(error), what)
                text = error if first == what else f"same error as `{first}`"
                print(f"  {what:<12} FAILED  {text}", flush=True)
    profile = f" (profile {job.profile})" if job.profile else ""
    end = (
        "is ready to run"
        if not failed
        else f"is not ready: {failed} of {len(checks)} checks failed"
    )
    print(f"{job.name}{profile} {end}; nothing was launched")
    return 4 if failed else 0


def check_host(job: Job) -> str:
    """Compare the GPUs of a plan, and its launcher, with this host.

    Raises:
        LaunchError: the run cannot start here.
    """
    from forgedsl.plan.gpus import detect_gpus
    from forgedsl_runtime.service_backend import check_supported

    check_supported(job)
    places = [place for service in job.services.values() for place in service.mesh.places]
    need = max((gpu + 1 for place in places for gpu in place.gpus), default=0)
    have = len(detect_gpus())
    if need > have:
        raise LaunchError(
            f"the plan uses {counted(need, 'GPU')}, but this host has {have or 'none'}"
        )
    return f"one host, {need} of {counted(have, 'GPU')}" if have else "one host, no GPU"


def _packages(job: Job) -> str:
    from importlib.metadata import PackageNotFoundError, version

    names = ["torch", "torchmonarch", "torchtitan", "transformers"]
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError as error:
            from forgedsl.cli.main import missing

            raise LaunchError(missing(name)) from error
    return ", ".join(found)


def _models(job: Job, folder: Path) -> str:
    from forgedsl.families import registry
    from forgedsl.families.base import Unsupported
    from forgedsl_runtime.models import (
        check_model_adapter,
        resolve_model,
        tenant_adapter,
        tokenizer_folder,
    )

    found = []
    for name in job.services.keys() - job.with_processes.keys():
        tenant_adapter(job, name, folder)
    for name in job.models:
        files = resolve_model(job, name, folder, folder)
        config = (files / "config.json").read_text("utf-8")
        check_model_adapter(job, name, files, folder)
        tokenizer_folder(job, name, folder, folder)
        try:
            found.append(f"{name} ({registry.by_config(json.loads(config))[0].name})")
        except Unsupported as why:
            raise LaunchError(f"{job.origins.get(name, '')}: model {name}: {why}") from why
    return ", ".join(found)


def _data(job: Job, folder: Path, seen: dict[str, DatasetCheck]) -> str:
    from forgedsl.cli.data_checks import check_datasets

    checks = check_datasets(job, folder, job.datasets, offline=False)
    seen |= checks
    problems = [check.refused for check in checks.values() if check.refused]
    if problems:
        raise LaunchError("\n".join(problems))
    found = []
    for name, check in checks.items():
        text = f"{name}: {'streamed rows' if check.rows is None else counted(check.rows, 'row')}"
        few = f"{check.unknown:,} with text that the tokenizer does not know"
        unknown = check.unknown_text or (few if check.unknown else "")
        shown = ", ".join(filter(None, (text, check.left_out, check.few, unknown)))
        found.append(f"{shown}{check.examples if check.left_out else ''}")
    said = ("\n" + 23 * " " if any("\n" in text for text in found) else ", ").join(found)
    return Doubtful(said) if any(check.unknown_text for check in checks.values()) else said


def _rewards(job: Job, folder: Path, seen: dict[str, DatasetCheck]) -> str:
    """Load the rewards, and call each once on a row."""
    from forgedsl.cli.data_checks import check_rewards

    tried = check_rewards(job, folder, job.rewards, seen)
    problems = [found.unloaded or found.failed for found in tried.values()]
    if any(problems):
        raise LaunchError("\n".join(filter(None, problems)))
    shown = [_trial_text(name, trial) for name, trial in tried.items()]
    return ", ".join(shown) or "none"


def _trial_text(name: str, trial: RewardTrial) -> str:
    """Return the line of a reward that was called, and may have failed for an arbitrary answer."""
    if trial.value is None:
        return name
    if not trial.cause:
        return f"{name} returned {trial.value:g}"
    return (
        f"{name} returned {trial.value:g} for the target, and failed for the answer "
        f'"The answer is 42.": {trial.cause}'
    )


def _in_python(job: Job) -> list[str]:
    return [name for name, loss in job.losses.items() if loss.python]


def _losses(job: Job, folder: Path) -> str:
    """Instantiate the losses in Python, and call each once on random rows."""
    from forgedsl.cli.data_checks import check_losses

    problems = check_losses(folder)
    if problems:
        raise LaunchError("\n".join(f"{name}: {why}" for name, why in problems.items()))
    return ", ".join(_in_python(job))


def _environments(job: Job, folder: Path, seen: dict[str, DatasetCheck]) -> str:
    """Load the environments, play one turn in each on a row, and check that the prompt shows their
    tools."""
    from forgedsl.cli.trying import play_environments

    played = play_environments(job, folder, seen)
    problems = [found.problem for found in played.values() if found.problem]
    if problems:
        raise LaunchError("\n".join(problems))
    unseen = [f"\n{23 * ' '}note: {p.unseen}" for p in played.values() if p.unseen]
    return ", ".join(job.environments) + "".join(unseen)


def _run_folder(request: RunOptions, job: Job, folder: Path) -> str:
    """Check that the run folder is writable and has enough disk space."""
    from forgedsl_runtime.disk_space import check_room

    wanted = request.run_dir or Path("runs") / f"{job.name}-<time>"
    if (wanted / "job.json").exists() and has_begun(wanted):
        raise LaunchError(f"{wanted} already contains a run")
    there = next(path for path in (wanted, *wanted.absolute().parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise LaunchError(
            f"{wanted} cannot be created: {there} is not writable; choose another place with "
            "--run-dir DIR"
        )
    return f"{wanted}, {check_room(job, folder, folder, wanted)}"
