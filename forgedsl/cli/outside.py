"""What a run would say of its data and rewards, by the code of the run, before there is one.

Lowered --files copied beside the job--> Look at each dataset      what would be left out
                                     `-> problem of each reward    that cannot be loaded
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.errors import ForgeError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forgedsl.lint.deep import Look
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job
    from forgedsl.runtime.data import ChatTokenizer, DatasetReader
    from forgedsl.runtime.environments.process import EnvironmentProcess
    from forgedsl.runtime.rewards.process import RewardProcess


SECONDS = 35.0
"""for a reward to be loaded by lint: what takes longer would rather hang than load"""


class Eyes:
    """Looks at the jobs of one command. What several jobs have in common is looked at once."""

    def __init__(self) -> None:
        self._data: dict[object, Look] = {}
        self._rewards: dict[object, str] = {}

    def __call__(self, lowered: Lowered) -> tuple[dict[str, Look], dict[str, str]]:
        """Looks at the datasets of a job, and what keeps rewards from being loaded, by name."""
        from forgedsl.cli.inputs import copy_inputs

        job = lowered.job
        data = {name: _of_data(lowered, name) for name in job.datasets}
        rewards = {name: (name, r.model_dump_json()) for name, r in job.rewards.items()}
        new_data = [name for name, key in data.items() if key not in self._data]
        new_rewards = [name for name, key in rewards.items() if key not in self._rewards]
        if new_data or new_rewards:
            with tempfile.TemporaryDirectory(prefix="forgec-lint-") as name:
                folder = Path(name)
                copy_inputs({name: path for path, name in lowered.files}, folder, link=True)
                looks = look_at_data(job, folder, new_data, offline=True)
                problems = look_at_rewards(job, folder, new_rewards, seconds=SECONDS)
            self._data |= {data[name]: look for name, look in looks.items()}
            self._rewards |= {rewards[name]: problems.get(name, "") for name in new_rewards}
        failed = {name: self._rewards[key] for name, key in rewards.items() if self._rewards[key]}
        return {name: self._data[key] for name, key in data.items()}, failed


def _of_data(lowered: Lowered, name: str) -> object:
    """All that a look at a dataset depends on."""
    job = lowered.job
    dataset = job.datasets[name]
    nodes = tuple((n.op, n.target, n.inputs) for n in job.nodes)
    shapes = tuple(getattr(service, "batch", None) for service in job.services.values())
    rewards = tuple((key, tuple(r.inputs.items())) for key, r in job.rewards.items())
    model = job.models[dataset.tokenizer].model_dump_json()
    return name, dataset.model_dump_json(), model, job.program, nodes, shapes, rewards


def look_at_data(job: Job, folder: Path, names: Iterable[str], *, offline: bool) -> dict[str, Look]:
    """Read datasets as the run does, the tokenizer where it is at hand; with `offline`,
    nothing is downloaded, and what is not here is said."""
    from forgedsl.lint.deep import Look
    from forgedsl.runtime.data.reader import load_tokenizer, reader_of
    from forgedsl.runtime.models import NotHere
    from forgedsl.runtime.modules import load_module

    program = load_module("program", job.program)

    @cache
    def tokenizer(model: str) -> ChatTokenizer | str:
        try:
            return load_tokenizer(job, model, folder, folder, offline=offline)
        except (NotHere, ModuleNotFoundError) as why:
            if not offline:
                raise
            return str(why)

    found = {}
    for name in names:
        try:
            chat = tokenizer(job.datasets[name].tokenizer)
            known = None if isinstance(chat, str) else chat
            reader = reader_of(job, name, known, program=program, job_dir=folder, offline=offline)
            found[name] = _look(job, name, reader, chat if isinstance(chat, str) else "")
        except (LaunchError, ModuleNotFoundError) as why:
            is_open = offline and isinstance(why, NotHere | ModuleNotFoundError)
            found[name] = Look(unread=str(why)) if is_open else Look(refused=str(why))
    return found


def check_data(job: Job, inputs: Mapping[str, Path], names: Iterable[str]) -> None:
    """Look at datasets as the run would with these files.

    Raises:
        LaunchError: the run would not start with one of them.
    """
    from forgedsl.cli.inputs import copy_inputs

    with tempfile.TemporaryDirectory(prefix="forgec-data-") as name:
        copy_inputs(dict(inputs), Path(name), link=True)
        looks = look_at_data(job, Path(name), names, offline=False)
    if problems := [look.refused for look in looks.values() if look.refused]:
        raise LaunchError("\n".join(problems))


def _look(job: Job, name: str, reader: DatasetReader, unmeasured: str) -> Look:
    """What there is to say of the rows that a reader has."""
    from forgedsl.lint.deep import Look
    from forgedsl.rows import BAD
    from forgedsl.runtime.data.reader import SECONDS, maker

    refused = ""
    try:
        reader.check(maker(job, name, reader), SECONDS)
    except ForgeError as error:
        refused = str(error)
    return Look(
        rows=reader.num_rows, checked=reader.checked, bad=reader.dropped[BAD],
        left_out=reader.drops.left_out(reader.checked), examples=reader.drops.examples(),
        refused=refused, unmeasured=unmeasured, few="" if refused else reader.few,
        unread="" if reader.num_rows is not None else "its rows are streamed",
    )  # fmt: skip


def look_at_rewards(
    job: Job, folder: Path, names: Iterable[str], *, seconds: float | None = None
) -> dict[str, str]:
    """Load rewards as a run does, each in a process of its own, since code of the user may
    hang or end it; what keeps one from being loaded, by its name. `seconds` for each, not a run's.
    """
    from forgedsl.runtime.rewards.process import RewardProcess
    from forgedsl.runtime.rewards.worker import Recipe

    alone = [name for name in names if job.rewards[name].is_alone]
    processes = {n: RewardProcess(Recipe.of(job, str(folder), (n,))) for n in alone}
    return _unloadable(processes, seconds)


def look_at_environments(job: Job, folder: Path) -> dict[str, str]:
    """Load environments as a run does; what keeps one from being loaded, by its name."""
    from forgedsl.runtime.environments.process import EnvironmentProcess
    from forgedsl.runtime.environments.worker import Served

    return _unloadable({
        name: EnvironmentProcess(Served(name=name, environment=found, job_dir=str(folder)))
        for name, found in job.environments.items()
    })  # fmt: skip


def _unloadable(
    processes: Mapping[str, RewardProcess | EnvironmentProcess], seconds: float | None = None
) -> dict[str, str]:
    """Start them one after another; the words of those that do not."""

    async def start() -> dict[str, str]:
        problems = {}
        for name, process in processes.items():
            try:
                await process.start(seconds)
            except LaunchError as error:
                problems[name] = str(error)
            finally:
                process.close()
        return problems

    return asyncio.run(start())
