"""Checks data and rewards before a run, with the runtime's own code.

Lowered --files copied beside the job--> a DatasetCheck per dataset: rows that the run would skip
                                     |-> a RewardTrial per reward: why it fails to load or to run
                                     `-> CallResults: what rewards give for constructed answers
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.waiting import waiting
from forgedsl.errors import ForgeError, LaunchError
from forgedsl.lower.dataset_columns import judges, read_by
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from types import ModuleType

    from forgedsl.lint.call_results import CallResults, EnvironmentPlays, RewardCalls
    from forgedsl.lint.deep import DatasetCheck
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job
    from forgedsl_runtime.data import ChatTokenizer, DatasetReader
    from forgedsl_runtime.data_types import Rollout
    from forgedsl_runtime.probes.rewards import ProbeRows
    from forgedsl_runtime.rewards.process import RewardProcess
    from forgedsl_runtime.rewards.worker import Recipe


SECONDS = 35.0
"""time limit for loading a reward, an environment or a loss in Python before a run"""
CALLS_SECONDS = 10.0
"""time limit for all calls of rewards with constructed answers"""
ROWS_READ = 32
"""number of first rows from which the rows for calls of rewards are chosen"""


class InputChecker:
    """Checks the jobs of one command. Datasets and rewards that jobs share are checked once."""

    def __init__(self) -> None:
        self._data: dict[object, DatasetCheck] = {}
        self._rewards: dict[object, RewardTrial] = {}
        self._called: dict[object, RewardCalls | EnvironmentPlays] = {}
        self._left = CALLS_SECONDS

    def calls(
        self, lowered: Lowered, with_side_effects: frozenset[str] = frozenset()
    ) -> CallResults:
        """Call the Python rewards of a checked job with constructed answers, and play its
        environments (`runtime.probes`). Rewards in `with_side_effects` are not called."""
        from forgedsl.cli.inputs import copy_inputs
        from forgedsl.lint.call_results import CallResults, EnvironmentPlays, RewardCalls
        from forgedsl_runtime.probes.games import play_environments
        from forgedsl_runtime.probes.rewards import call_rewards

        job = lowered.job
        checks = {name: self._data[_of_data(lowered, name)] for name in job.datasets}
        wanted = _asked_of(job, checks, with_side_effects)
        specs = {**job.environments, **job.rewards}
        keys = {n: (n, specs[n].model_dump_json(), id(rows)) for n, rows in wanted.items()}
        new = {name: rows for name, rows in wanted.items() if keys[name] not in self._called}
        if new:
            rewards = {name: rows for name, rows in new.items() if name in job.rewards}
            games = {name: rows for name, rows in new.items() if name in job.environments}
            with (
                tempfile.TemporaryDirectory(prefix="forgec-lint-") as made,
                waiting("calling rewards") as progress,
            ):
                folder = Path(made)
                copy_inputs({n: path for path, n in lowered.files}, folder, link=True)
                began = time.monotonic()
                found: dict[str, RewardCalls | EnvironmentPlays] = {
                    **call_rewards(job, folder, rewards, self._left, progress)
                }
                self._left -= time.monotonic() - began
                found |= play_environments(job, folder, games, self._left, progress)
                self._left -= time.monotonic() - began
            self._called |= {keys[name]: result for name, result in found.items()}
        results = {name: self._called[key] for name, key in keys.items()}
        return CallResults(
            rewards={n: r for n, r in results.items() if isinstance(r, RewardCalls)},
            environments={n: r for n, r in results.items() if isinstance(r, EnvironmentPlays)},
        )

    def __call__(
        self, lowered: Lowered, with_side_effects: frozenset[str] = frozenset()
    ) -> tuple[dict[str, DatasetCheck], dict[str, str], dict[str, str]]:
        """Check the datasets and rewards of a job. Returns three mappings by name: dataset checks,
        errors while loading rewards, and errors while calling rewards. Rewards in
        `with_side_effects` are not called."""
        from forgedsl.cli.inputs import copy_inputs

        job = lowered.job
        data = {name: _of_data(lowered, name) for name in job.datasets}
        read = tuple(data.values())
        rewards = {name: (name, r.model_dump_json(), read) for name, r in job.rewards.items()}
        new_data = [name for name, key in data.items() if key not in self._data]
        new_rewards = [name for name, key in rewards.items() if key not in self._rewards]
        if new_data or new_rewards:
            with tempfile.TemporaryDirectory(prefix="forgec-lint-") as name:
                folder = Path(name)
                copy_inputs({name: path for path, name in lowered.files}, folder, link=True)
                checks = check_datasets(job, folder, new_data, offline=True)
                self._data |= {data[name]: check for name, check in checks.items()}
                checks = {name: self._data[key] for name, key in data.items()}
                tried = check_rewards(
                    job,
                    folder,
                    new_rewards,
                    checks,
                    with_side_effects=with_side_effects,
                    quiet=True,
                )
            self._rewards |= {rewards[name]: found for name, found in tried.items()}
        found = {name: self._rewards[key] for name, key in rewards.items()}
        unloaded = {name: tried.unloaded for name, tried in found.items() if tried.unloaded}
        failed = {name: tried.failed for name, tried in found.items() if tried.failed}
        return {name: self._data[key] for name, key in data.items()}, unloaded, failed


def _asked_of(
    job: Job, checks: Mapping[str, DatasetCheck], with_side_effects: Collection[str]
) -> dict[str, ProbeRows]:
    """Return, by name, the rows with which to call each Python reward and environment."""
    found = {}
    for name, reward in job.rewards.items():
        if reward.kind == "python" and name not in with_side_effects:
            judged = (c.asked for key, c in checks.items() if name in judges(job, key))
            found[name] = next(filter(None, judged), None)
    for name, spec in job.environments.items():
        if not (spec.agent or spec.gymnasium or spec.scripts):
            check = checks.get(played_on(job, name))
            found[name] = check.asked if check is not None else None
    return {name: asked for name, asked in found.items() if asked is not None}


def _of_data(lowered: Lowered, name: str) -> object:
    """Return a key of everything that the check of a dataset depends on."""
    job = lowered.job
    dataset = job.datasets[name]
    nodes = tuple((n.op, n.target, n.inputs) for n in job.nodes)
    shapes = tuple(getattr(service, "batch", None) for service in job.services.values())
    rewards = tuple((key, tuple(r.inputs.items())) for key, r in job.rewards.items())
    model = job.models[dataset.tokenizer].model_dump_json()
    return name, dataset.model_dump_json(), model, job.program, nodes, shapes, rewards


def check_datasets(
    job: Job, folder: Path, names: Iterable[str], *, offline: bool
) -> dict[str, DatasetCheck]:
    """Read datasets as the run does, with the tokenizer if it is available locally. With `offline`,
    nothing is downloaded; the DatasetCheck names what is missing."""
    from forgedsl.lint.deep import DatasetCheck
    from forgedsl_runtime.data.reader import load_tokenizer, reader_of
    from forgedsl_runtime.models import NotAvailableOffline
    from forgedsl_runtime.modules import load_module

    program = load_module("program", job.program)

    @cache
    def tokenizer(model: str) -> ChatTokenizer | str:
        try:
            return load_tokenizer(job, model, folder, folder, offline=offline)
        except (NotAvailableOffline, ModuleNotFoundError) as why:
            if not offline:
                raise
            return str(why)

    found = {}
    for name in names:
        try:
            chat = tokenizer(job.datasets[name].tokenizer)
            known = None if isinstance(chat, str) else chat
            reader = reader_of(job, name, known, program=program, job_dir=folder, offline=offline)
            unmeasured = chat if isinstance(chat, str) else ""
            found[name] = _checked_dataset(job, name, reader, unmeasured, offline=offline)
        except (LaunchError, ModuleNotFoundError) as why:
            is_open = offline and isinstance(why, NotAvailableOffline | ModuleNotFoundError)
            found[name] = (
                DatasetCheck(unread=str(why), asked=_published(job, name, program))
                if is_open
                else DatasetCheck(refused=str(why))
            )
    return found


def check_data(job: Job, inputs: Mapping[str, Path], names: Iterable[str]) -> None:
    """Check the datasets of a job as a run with these files would read them.

    Raises:
        LaunchError: the run would not start with one of them.
    """
    from forgedsl.cli.inputs import copy_inputs

    with tempfile.TemporaryDirectory(prefix="forgec-data-") as name:
        copy_inputs(dict(inputs), Path(name), link=True)
        checks = check_datasets(job, Path(name), names, offline=False)
    if problems := [check.refused for check in checks.values() if check.refused]:
        raise LaunchError("\n".join(problems))


def _answers(job: Job, name: str, reader: DatasetReader) -> tuple[Rollout, ...]:
    """Return answers to the first prompt for trial calls of rewards: an arbitrary text, and the
    target. If the job has environments, the answers are finished trajectories of one turn with
    reward 0."""
    if read_by(job, name).role is not Role.PROMPTS or reader.num_rows == 0:
        return ()
    first = reader.rollout_with_answer("The answer is 42.") if reader.measures else None
    if first is None:
        return ()
    plain = isinstance(first.target, str | int | float)
    wanted = reader.rollout_with_answer(str(first.target)) if plain else None
    answers = (first,) if wanted is None else (first, wanted)
    parts = {part for env in job.environments.values() for part in env.parts}
    for answer in answers if job.environments else ():
        answer.rewards, answer.ended = dict.fromkeys(parts, 0.0), "done"
    return answers


def _asked(job: Job, name: str, reader: DatasetReader) -> ProbeRows | None:
    """Return rows for calls of rewards, with different targets if the dataset has some."""
    from forgedsl_runtime.probes.rewards import ROWS, ProbeRows

    if read_by(job, name).role is not Role.PROMPTS or not reader.num_rows:
        return None
    prompts = reader.prompts(ROWS_READ)
    different = list({str(prompt.target): prompt for prompt in reversed(prompts)}.values())
    chosen = tuple(sorted(different, key=lambda prompt: prompt.cursor)[:ROWS])
    sampling = (getattr(service, "sampling", None) for service in job.services.values())
    return ProbeRows(
        prompts=chosen, places=tuple(reader.source.place(prompt.row) for prompt in chosen),
        answer=reader.answer_to, measured=reader.measures,
        max_tokens=max((each.max_tokens for each in sampling if each is not None), default=0),
    )  # fmt: skip


def _published(job: Job, name: str, program: ModuleType) -> ProbeRows | None:
    """Return the first rows of a published dataset that is not on this machine, if they are
    known."""
    from forgedsl_runtime.data.reader import DatasetReader, Wanted
    from forgedsl_runtime.data.sources import Table
    from forgedsl_runtime.probes.published import rows_of

    dataset = job.datasets[name]
    source, rows = rows_of(dataset.source)
    if not rows:
        return None
    table = Table(rows, None, source)
    reader = DatasetReader(dataset, table, None, program, name=name, wanted=Wanted.by(job, name))
    return _asked(job, name, reader)


def _checked_dataset(
    job: Job, name: str, reader: DatasetReader, unmeasured: str, *, offline: bool
) -> DatasetCheck:
    """Read the rows of a dataset: counts, and rows that would be left out."""
    from forgedsl.lint.deep import DatasetCheck
    from forgedsl.rows import BAD
    from forgedsl_runtime.data.evidence import Evidence, separators
    from forgedsl_runtime.data.reader import SECONDS, item_maker

    refused = ""
    of = (job.rewards[reward] for reward in judges(job, name))
    parsed = any((r.kind, r.function) == ("std", "math_equal") for r in of)
    evidence = Evidence(parsed=parsed)
    with separators(reader.program) as counts:
        try:
            reader.check(evidence.record_items(item_maker(job, name, reader)), SECONDS)
        except ForgeError as error:
            refused = str(error)
    answers = (
        () if refused or (offline and reader.num_rows is None) else _answers(job, name, reader)
    )
    asked = None if refused or reader.num_rows is None else _asked(job, name, reader)
    return DatasetCheck(
        asked=asked, answers=answers,
        first=reader.source.place(answers[0].prompt.row) if answers else "",
        rows=reader.num_rows, checked=reader.checked, bad=reader.dropped[BAD],
        left=reader.dropped.total(), cut=reader.cut["batch.seq_len"],
        left_out=reader.drops.left_out(reader.checked), examples=reader.drops.examples(),
        refused=refused, unmeasured=unmeasured, few="" if refused else reader.too_few_rows_warning,
        absent=tuple(text for text, (calls, found) in counts.items() if calls and not found),
        repeated=evidence.repeated, near_duplicates=evidence.near_duplicates,
        results=evidence.results, unparsed_target=evidence.unparsed_target,
        unknown=reader.num_unknown, unknown_text=reader.unknown_text,
        prompts=evidence.prompts,
        unread="" if reader.num_rows is not None else "its rows are streamed",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTrial:
    """Result of loading a reward and calling it once: a value, or the error."""

    value: float | None = None
    unloaded: str = ""
    failed: str = ""
    cause: str = ""
    """error message of the failed call; with a value, that of the call with an arbitrary answer"""


def check_rewards(
    job: Job, folder: Path, names: Iterable[str], checks: Mapping[str, DatasetCheck], *,
    with_side_effects: Collection[str] = (), quiet: bool = False,
) -> dict[str, RewardTrial]:  # fmt: skip
    """Load rewards as a run does and call each once on its first row, except those in
    `with_side_effects`. What they print is not shown if `quiet`. Each has a process of its own,
    because user code may hang or exit."""
    return asyncio.run(
        _try_rewards(job, folder, tuple(names), checks, with_side_effects, quiet=quiet)
    )


async def _try_rewards(
    job: Job, folder: Path, names: Iterable[str], checks: Mapping[str, DatasetCheck],
    with_side_effects: Collection[str], *, quiet: bool,
) -> dict[str, RewardTrial]:  # fmt: skip
    from forgedsl_runtime.rewards.process import RewardProcess
    from forgedsl_runtime.rewards.worker import Recipe

    found = {}
    for name in names:
        recipe = Recipe.of(job, str(folder), (name,))
        process = RewardProcess(recipe, quiet=quiet)
        judged = (
            check for key, check in checks.items() if name in judges(job, key) and check.answers
        )
        own = job.rewards[name].kind in ("python", "program", "endpoint")
        check = next(judged, None) if own and name not in with_side_effects else None
        try:
            if check is not None or job.rewards[name].is_alone:
                await process.start(SECONDS)
            found[name] = (
                RewardTrial() if check is None else await _call_reward(process, recipe, name, check)
            )
        except LaunchError as error:
            found[name] = RewardTrial(unloaded=str(error))
        finally:
            process.close()
    return found


async def _call_reward(
    process: RewardProcess, recipe: Recipe, name: str, check: DatasetCheck
) -> RewardTrial:
    """Call a reward until an answer gets a value. An arbitrary answer may legitimately fail."""
    from forgedsl.rows import kind_of

    problem = ""
    for answer in check.answers:
        (outcome,) = await process.call(((name,), answer, answer.target))
        if outcome.value is not None:
            return RewardTrial(value=outcome.value, cause=problem)
        problem = problem or outcome.error
    target = check.answers[0].target
    shown = f"{kind_of(target)}: {target!r:.60}"
    where = f"{recipe.named(name)} fails for {check.first}"
    return RewardTrial(failed=f"{where}, whose target is {shown}: {problem}", cause=problem)


def played_on(job: Job, env: str) -> str:
    """Return the dataset whose prompts are played in an environment."""
    roots = {node.name: node.target for node in job.nodes if Role.PROMPTS in node.roles}
    plays = (n for n in job.nodes if getattr(n, "env", None) == env and n.inputs)
    return next((roots.get(node.inputs[0].edge, "") for node in plays), "")


def check_losses(folder: Path) -> dict[str, str]:
    """Instantiate the losses in Python and call each once, in another process; errors by name.
    `folder` contains the job."""
    command = [sys.executable, "-m", "forgedsl_runtime.losses.trial", str(folder / "job.json")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"a call of a Python loss took more than {SECONDS:g} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise LaunchError(f"a Python loss ended its process: {lines[-1] if lines else ''}")
    problems: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return problems
