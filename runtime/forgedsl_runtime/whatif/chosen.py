"""Choose the recorded steps of a what-if, and check that they hold what the other job needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from forgedsl.errors import LaunchError, RunError
from forgedsl.lower import job as spec
from forgedsl.runs.compare import function_text
from forgedsl.types.flow import Role
from forgedsl_runtime.recorded.files import steps_in
from forgedsl_runtime.whatif.services import OF_MODELS

SAMPLES = frozenset({Role.SUPERVISED, Role.PAIRS, Role.RECALLS})
"""roles of sources whose samples come from a dataset or a buffer: these are not recorded"""


def chosen(run_dir: Path, job: spec.Job, steps: str | None) -> dict[int, Path]:
    """Return the files of the steps `A:B` (both included) or `A`; None: all that are recorded.

    Raises:
        LaunchError: none of them is recorded.
    """
    found = steps_in(run_dir)
    if not found:
        if job.logging.record is None:
            why = "`logging.record.steps` is none"
        elif not job.samplers:
            why = "only completions of a generator are recorded, and it has none"
        else:
            why = "it did no step, or an older version of forgedsl wrote it"
        raise LaunchError(f"{run_dir} has no recorded steps: {why}")
    if steps is None:
        return found
    first, _, last = steps.partition(":")
    if not first.isdigit() or not (last or first).isdigit():
        raise LaunchError(f"--steps must be A:B or A, such as 200:250, not {steps}")
    wanted = {n: p for n, p in found.items() if int(first) <= n <= int(last or first)}
    if not wanted:
        there = f"{min(found)} to {max(found)}"
        raise LaunchError(f"steps {steps} of {run_dir} are not recorded; recorded are {there}")
    return wanted


def check(
    run_dir: Path, run: spec.Job, job: spec.Job, files: Mapping[int, Path], *, trains: bool = False
) -> None:
    """Check that recorded steps hold everything that the other job needs. With `trains`, the model
    is trained again and computes the inputs of the losses, so these need not be recorded.

    Raises:
        RunError: something is missing; the error names the place in the file.
    """
    for message, origin, remedy in _lacks(run, job, next(iter(files.values())), trains):
        raise RunError(message, origin=origin, remedy=remedy)


def _lacks(
    run: spec.Job, job: spec.Job, path: Path, trains: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield what is missing: message, place in the file, remedy."""
    old = {node.name: node for node in run.nodes}
    again = "name it as in the run, or record another run with this file"
    for node in job.nodes:
        before = old.get(node.name)
        if node.roles & SAMPLES:
            text = f"`{node.name}` ({node.op}) draws samples that are not recorded"
            yield text, node.origin, "a what-if works for flows whose prompts are drawn and sampled"
        drawn = Role.PROMPTS in node.roles and before is not None
        if before and drawn and _dataset(run, before.target) != _dataset(job, node.target):
            text = f"dataset `{node.target}` differs from the dataset of the run"
            yield text, node.origin, "use the dataset of the run, with its prompt and target"
        if node.roles & {Role.PROMPTS, Role.SAMPLES, Role.MEASURES}:
            if before is None or before.op != node.op:
                yield f"`{node.name}` ({node.op}) is not recorded", node.origin, again
            elif before.n != node.n:
                text = f"`{node.name}` samples {node.n} completions, but {before.n} are recorded"
                yield text, node.origin, "the number of completions must be that of the run"
            elif before.env != node.env:
                text = f"`{node.name}` has another environment than in the run"
                yield text, node.origin, "use the environment of the run"
    yield from _rewards(run, job, path)
    for loss in () if trains else job.losses.values():
        if reads := sorted({f.name for f in loss.fields if f.diff} - {"logprob"}):
            text = f"loss `{loss.name}` reads {', '.join(reads)} of the trained model"
            yield text, job.origins.get(loss.name, ""), "only log-probs are recorded"


def _dataset(job: spec.Job, name: str) -> tuple[object, ...]:
    dataset = job.datasets[name]
    texts = (dataset.prompt, dataset.target)
    return (
        dataset.source.model_dump(exclude={"path"}), dataset.max_prompt_tokens,
        *(text and function_text(job.program, text) for text in texts),
    )  # fmt: skip


def _rewards(run: spec.Job, job: spec.Job, path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield missing parts of rewards: a score that only a model could compute, or an unrecorded
    column."""
    columns = _columns(path)
    for name, reward in job.rewards.items():
        origin = job.origins.get(name, "")
        if reward.kind in OF_MODELS:
            before = run.rewards.get(name)
            kept = {"kind", "service", "args", "inputs"}
            if before is None or before.model_dump(include=kept) != reward.model_dump(include=kept):
                text = f"reward `{name}` needs a model ({reward.kind}), and is not recorded"
                yield (
                    text,
                    origin,
                    "a reward that needs a model must be in the run, with the same service and "
                    "arguments",
                )
        for given in (*reward.inputs.values(), *reward.positional):
            kind, _, column = given.partition(" ")
            if kind == "column" and column not in columns:
                known = ", ".join(sorted(columns)) or "none"
                text = f"reward `{name}` reads the column `{column}`, which is not recorded"
                yield (
                    text,
                    origin,
                    f"recorded are the columns that rewards of the run read: {known}",
                )
            elif kind == "row" and not any(
                "row" in (*each.inputs.values(), *each.positional) for each in run.rewards.values()
            ):
                text = f"reward `{name}` reads whole rows, which are not recorded"
                yield text, origin, "no reward of the run read whole rows"


def _columns(path: Path) -> set[str]:
    """Return the columns of the dataset that are recorded."""
    import json

    import pyarrow.parquet as pq

    (first, *_) = pq.ParquetFile(path).read(columns=["columns"]).column(0).to_pylist()
    return set(json.loads(first))
