"""Changes that `forgec run --resume` allows, and differences between two jobs."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forgedsl import surface
from forgedsl.cli.overrides import UsageError
from forgedsl.runs.checkpoints import SESSION, WHOLE, last_step, no_run, spoilt_steps
from forgedsl.runs.settings import leaves

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

CHANGEABLE = (
    "schedule.steps",
    "schedule.epochs",
    "schedule.restarts",
    "evals",
    "checkpoint",
    "logging",
    "proofs",
)
"""sections that a resume may change: length and output of the run"""
DERIVED = ("content_hash", "compiler", "summary", "topology", "origins", "chosen")
"""fields that follow from other fields"""
SECONDS = ("timeout", "tool_timeout", "starve_timeout", "deadline", "every_s")
UNITS = dict.fromkeys(SECONDS, " s") | {"memory": " bytes"}
"""units of settings that a job stores as plain numbers"""
PLACE = re.compile(r"[\w.+-]+\.forge:\d+:\d+")


class Difference(NamedTuple):
    """A changed setting of a job: values before and after; times in seconds, sizes in bytes. For a
    changed file, `setting` contains its path and the values are digests of its contents."""

    setting: str
    before: Any
    after: Any
    file: str = ""

    def __str__(self) -> str:
        if self.file:
            user = self.setting.removesuffix(".sha256")
            return f"{self.file}, which {user} reads, has changed since the run began"
        unit = UNITS.get(self.setting.rpartition(".")[2], "")
        before, after = (f"{short(v)}{unit * (v is not None)}" for v in (self.before, self.after))
        return f"{self.setting}: {before} -> {after}"


def load_run_job(run_dir: Path) -> Job:
    """Read the job of a run folder. Raises UsageError if there is no checkpoint to continue
    from."""
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import read_job

    path = run_dir / "job.json"
    if not path.is_file():
        raise UsageError(no_run(run_dir))
    if (run_dir / SESSION).is_file():
        raise UsageError(
            f"{run_dir} was written by a Session of the Python API, which `forgec run` cannot "
            "resume: its states are of use only to the Session that saved them. To keep weights, "
            "call `export` of the trainer before the Session ends"
        )
    try:
        job = read_job(path)
    except SideError as error:
        raise UsageError(str(error)) from error
    step = last_step(run_dir)
    for spoilt in spoilt_steps(run_dir):
        print(f"note: the checkpoint of step {spoilt} cannot be read: its {WHOLE} is not valid "
              "JSON",
              file=sys.stderr)  # fmt: skip
    if not step:
        raise UsageError(
            f"{run_dir} has no checkpoint to continue from; start it again in another folder: "
            + surface.call(f"run {shlex.quote(str(run_dir))}/job.json", "p.run(folder)")
        )
    return job


def file_of(job: Job) -> str:
    """Return the name of the .forge file that a job was compiled from; "" if it is not known."""
    place = next(filter(None, (PLACE.search(node.origin) for node in job.nodes)), None)
    return place.group().partition(".forge")[0] + ".forge" if place else ""


def path_of(job: Job, run_dir: Path) -> str:
    """Return the path of the job's .forge file, if it is here or above the run folder; else its
    name."""
    name = file_of(job)
    if name and not Path(name).is_file():
        above = (parent / name for parent in run_dir.resolve().parents)
        found = next((path for path in above if path.is_file()), None)
        return name if found is None else os.path.relpath(found)
    return name


def split(found: list[Difference], allowed: str) -> tuple[list[Difference], list[Difference]]:
    """Split differences into those that stop a resume, and those that `--allow` permits: settings
    of optimizers, data, or ranks and hosts. If it permits at least one, changed params are
    permitted too: each setting that a param changes is a difference of its own."""
    taken = [each for each in found if allowed and ALLOWED_BY_CLASS[allowed](each)]
    if not taken:
        return found, []
    taken += [each for each in found if each.setting.startswith("params.")]
    return [each for each in found if each not in taken], taken


def _of_optimizer(found: Difference) -> bool:
    path = found.setting.split(".")
    return path[0] == "services" and path[2:3] == ["optimizer"] and path[3:4] != ["kind"]


def _of_data(found: Difference) -> bool:
    return found.setting.startswith("datasets.")


def _of_placement(found: Difference) -> bool:
    """True for a setting of placement: it changes where and in which order things are computed."""
    path = found.setting.split(".")
    if path[0] == "services":
        parts = ("mesh", "parallel", "activation_checkpoint", "keep_weights", "gpu_memory")
        return path[2] in parts or path[2:] == ["batch", "rows"]
    return path[0] in ("launcher", "colocate") or path[0::2] == ["nodes", "transport"]


ALLOWED_BY_CLASS = {"numerics": _of_optimizer, "data": _of_data, "placement": _of_placement}
"""values of `--allow`, each with a test of the differences that it permits"""


def refused(found: list[Difference]) -> str:
    """Return the message about differences that stop a resume, with the `--allow` that would permit
    them."""
    kind = next((kind for kind in ALLOWED_BY_CLASS if not split(found, kind)[0]), "")
    why = f"{surface.option('--allow', kind)} accepts these changes"
    if not kind:
        numerics, data, placement = (surface.option("--allow", each) for each in ALLOWED_BY_CLASS)
        why = (
            f"a resumed run may change its length, evals, checkpoints and logging. {numerics} "
            f"permits changes of the optimizer, {data} of data, {placement} of ranks and hosts. "
            "These settings differ"
        )
    params = [each for each in found if each.setting.startswith("params.")]
    inner = [each for each in found if each.setting.split(".")[0] in ("nodes", "edges", "program")]
    shown = [each for each in found if not (params and each in inner)]
    lines = (f"  {re.sub(r'^(services|params)[.]', '', str(each))}" for each in shown[:12])
    return "\n".join((f"{why}:", *lines))


def note_changes(run_dir: Path, taken: list[Difference]) -> None:
    """Print the changes of a resumed run, and append them to RUN/changes.jsonl."""
    if not taken:
        return
    step = last_step(run_dir)
    for each in (one for one in taken if ".places" not in one.setting):
        print(f"changed from step {step + 1} on: {each}", file=sys.stderr)
    if any(_of_placement(each) for each in taken):
        print(
            "sums are computed in another order, so results are equal only up to rounding",
            file=sys.stderr,
        )
    changes = [
        {"setting": each.setting, "before": each.before, "after": each.after} for each in taken
    ]
    with (run_dir / "changes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"after_step": step, "changes": changes}) + "\n")


def where_from(run_dir: Path) -> str:
    """Return the text about the step a resumed run continues with, and the steps that are
    repeated."""
    from forgedsl.runs.data import jsonl

    step = last_step(run_dir)
    done = max((row["step"] for row in jsonl(run_dir / "metrics.jsonl", [])), default=0)
    text = f"continues with step {step + 1}, from the checkpoint of step {step}"
    if not step:
        text = "begins with step 1: there is no checkpoint"
    if done <= step:
        return text
    lost = f"step {done} is" if done == step + 1 else f"steps {step + 1} to {done} are"
    return f"{text}; {lost} repeated"


def differences(old: Job, new: Job) -> list[Difference]:
    """Return the differences that a resume must not make. Line numbers, `max_bad_rows` and versions
    of packages do not count."""
    before, after = (
        {path: PLACE.sub("", value) if isinstance(value, str) else value for path, value in found}
        for found in (leaves(job.model_dump(mode="json")) for job in (old, new))
    )
    skip = CHANGEABLE + DERIVED
    return [
        Difference(path, before.get(path), after.get(path), _file_of(path, after))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
        and not path.endswith(".max_bad_rows")
        and not _is_package(path)
        and not any(path == name or path.startswith(f"{name}.") for name in skip)
    ]


def _is_package(path: str) -> bool:
    home, *rest = path.split(".")
    if home == "datasets":  # also in the parts of a mixture
        return "source" in rest and rest[-2] == "packages"
    return home in ("environments", "rewards") and rest[1] == "packages"


def _file_of(path: str, values: dict[str, Any]) -> str:
    """Return the path of the file whose digest a setting holds; "" if it holds no digest."""
    home, _, name = path.rpartition(".")
    return str(values.get(f"{home}.path") or "") if name == "sha256" else ""


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def with_changes(old: Job, new: Job, *, allowed: str = "") -> Job:
    """Return the old job with those parts of the new one that a resume may change."""
    datasets = {
        name: dataset.model_copy(update={"max_bad_rows": new.datasets[name].max_bad_rows})
        if name in new.datasets
        else dataset
        for name, dataset in old.datasets.items()
    }
    schedule = old.schedule.model_copy(
        update={k: getattr(new.schedule, k) for k in ("steps", "epochs", "restarts")}
    )
    if allowed == "data":
        datasets = dict(new.datasets)
    update = {"schedule": schedule, "datasets": datasets} | {
        k: getattr(new, k) for k in ("evals", "checkpoint", "logging", "proofs", "summary")
    }
    if allowed in ("numerics", "placement"):
        update |= {"services": new.services}
    if allowed == "placement":
        update |= {k: getattr(new, k) for k in ("launcher", "colocate", "nodes")}
    if allowed:
        update |= {"params": new.params}
    return old.model_copy(update=update).sealed()


def package_changes(job: Job) -> list[Difference]:
    """Return the packages of rewards, environments and datasets whose installed versions are not
    those with which the run began. They do not stop a resume."""
    from forgedsl.cli.inputs import parts_of
    from forgedsl.lower import job as spec
    from forgedsl.lower.packages import changed

    found = [(f"rewards.{name}", reward.packages, "") for name, reward in job.rewards.items()]
    found += [
        (
            f"environments.{name}",
            played.packages,
            "" if played.program is None else played.program.command[0],
        )
        for name, played in job.environments.items()
    ]
    found += [
        (f"datasets.{name}", source.packages, "")
        for name, dataset in job.datasets.items()
        for source in parts_of(dataset.source)
        if isinstance(source, spec.ReasoningGymSource)
    ]
    return [
        Difference(f"{where}.packages.{package}", before, after)
        for where, packages, command in found
        for package, (before, after) in changed(packages, command).items()
    ]


def rehashed(job: Job, run_dir: Path) -> Job:
    """Return the job with the hashes of the data files that are in its folder now."""
    from forgedsl.lower import job as spec
    from forgedsl.lower.paths import digest

    def source_of(source: spec.DataSource) -> spec.DataSource:
        if isinstance(source, spec.MixtureSource):
            parts = tuple(source_of(part) for part in source.sources)
            return source.model_copy(update={"sources": parts})
        if isinstance(source, spec.FileSource) and (run_dir / source.path).exists():
            return source.model_copy(update={"sha256": digest(run_dir / source.path)})
        return source

    datasets = {
        name: dataset.model_copy(update={"source": source_of(dataset.source)})
        for name, dataset in job.datasets.items()
    }
    return job.model_copy(update={"datasets": datasets}).sealed()
