"""Record the completions of the last steps and the digests of published weights, for `whatif` and
`bisect`.

    groups of a step, dropped groups --Recorder--> recorded/step-000037.parquet

A file is written under another name and then renamed: a killed run leaves no half file. Writing
happens in a thread beside the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from forgedsl.lower.job import Job
from forgedsl_runtime.data_types import Batch, StepResult
from forgedsl_runtime.flow import Flow
from forgedsl_runtime.group import GroupState
from forgedsl_runtime.recorded.columns import rows_of
from forgedsl_runtime.recorded.files import Row, partial_files, path_of, steps_in, write
from forgedsl_runtime.recorded.weights import WeightsWriter
from forgedsl_runtime.updates import members_by_update


class Recorder:
    """Writes the recorded steps of a run that goes on after `step`. Files of later steps, which the
    run will do again, are removed."""

    def __init__(self, job: Job, flow: Flow, run_dir: Path, step: int) -> None:
        assert job.logging.record is not None
        self._keep = None if job.logging.record == "all" else job.logging.record
        self._most_bytes = job.logging.record_bytes
        self._flow, self._run_dir = flow, run_dir
        self._dropped: list[Row] = []
        self._writing: asyncio.Task[str] | None = None
        self._reported = False
        self._weights = WeightsWriter(run_dir, step)
        for path in partial_files(run_dir):
            path.unlink()
        for number, path in steps_in(run_dir).items():
            if number > step:
                path.unlink()

    def drop(self, group: GroupState, reason: str) -> None:
        """Keep a dropped group for the file of the next step."""
        self._dropped += rows_of(self._flow, group, reason)

    async def record(
        self,
        step: int,
        groups: Sequence[GroupState],
        batches: Mapping[str, Batch],
        results: Mapping[str, StepResult],
        origins: Mapping[str, Sequence[Sequence[tuple[int, str, int]]]],
    ) -> str:
        """Record a step in a thread, after the one before is written. `origins[step node][loss]
        [sample]` is the completion of a sample: (group, sampling node, sibling). Returns a warning
        about the step before, or ""."""
        said = await self.end()
        rows, self._dropped = self._dropped, []
        for group in groups:
            rows += rows_of(self._flow, group, "left the batch" if group.abandoned else None)
        by_key = {(row["unit"], row["edge"], row["cell"]): row for row in rows}
        for name, terms in origins.items():
            _add_places(by_key, name, terms, batches[name].sample_ages)
            _add_logprobs(by_key, name, terms, batches[name], results[name])
        if rows:
            self._writing = asyncio.create_task(asyncio.to_thread(self._write, step, rows))
        return said

    def record_weights(self, step: int, trainer: str, digests: Mapping[str, int]) -> str:
        """Record the digests of weights that were published after a step; return a warning, or
        ""."""
        try:
            self._weights.append(step, trainer, digests)
        except OSError as error:
            return f"the digests of the weights after step {step} are not recorded: {error}"
        return ""

    async def end(self) -> str:
        """Wait until the last step is written; return a warning, or ""."""
        task, self._writing = self._writing, None
        return "" if task is None else await task

    def _write(self, step: int, rows: Sequence[Row]) -> str:
        try:
            write(path_of(self._run_dir, step), rows)
            return self._remove_oldest(step)
        except OSError as error:
            return f"step {step} is not recorded: {error}"

    def _remove_oldest(self, step: int) -> str:
        """Remove the oldest files, down to the limits for steps and for bytes. The first time that
        the byte limit removes a step, return a warning."""
        found = steps_in(self._run_dir)
        first = 0 if self._keep is None else step - self._keep + 1
        keep = [number for number in sorted(found) if number >= first]
        room = self._most_bytes
        sizes = {number: found[number].stat().st_size for number in keep}
        cut = 0
        while room is not None and len(keep) - cut > 1 and sum(sizes[n] for n in keep[cut:]) > room:
            cut += 1
        for number in found.keys() - {*keep[cut:]}:
            found[number].unlink()
        if not cut or self._reported:
            return ""
        self._reported = True
        return (
            f"recorded steps take more than logging.record.disk ({room} bytes): only the last "
            f"{len(keep) - cut} are kept"
        )


def recorder_of(job: Job, flow: Flow, folder: Path | None, step: int) -> Recorder | None:
    """Return the recorder of a run that goes on after `step`; None if nothing is recorded."""
    if folder is None or job.logging.record is None:
        return None
    return Recorder(job, flow, folder, step)


def _add_places(
    by_key: Mapping[tuple[int, str, int], Row],
    name: str,
    terms: Sequence[Sequence[tuple[int, str, int]]],
    ages: Sequence[int | None],
) -> None:
    """Add the index of each completion's sample in its batch, and its age."""
    for number, samples in enumerate(terms):
        for place, key in enumerate(samples):
            if key in by_key:
                by_key[key][f"place/{name}/{number}"] = place
                if number == 0 and place < len(ages):
                    by_key[key]["age"] = ages[place]


def _add_logprobs(
    by_key: Mapping[tuple[int, str, int], Row],
    name: str,
    terms: Sequence[Sequence[tuple[int, str, int]]],
    batch: Batch,
    result: StepResult,
) -> None:
    """Add the log-probs of each completion, from the updates that trained on it."""
    updates = members_by_update(batch)
    if len(result.logprobs) != len(updates):
        return
    for number, (chosen, traced) in enumerate(zip(updates, result.logprobs, strict=True)):
        epoch = number // max(1, len(updates) // batch.epochs)
        for term, values in enumerate(traced):
            places = chosen if term == 0 else range(len(values))
            for place, logprobs in zip(places, values, strict=True):
                if term < len(terms) and place < len(terms[term]):
                    row = by_key.get(terms[term][place])
                    if row is not None:
                        row[f"logprob/{name}/{term}/{number if term else epoch}"] = logprobs
