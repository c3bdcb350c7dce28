"""Collect the results of the checks that a run makes of its own weights; stop the run if a check
fails.

    syncs, steps --Proofs--> warnings, GuardError; at the end of the run the lines of proofs.jsonl

Wrong weights in a sampler are not handled here: `forgedsl_runtime.services.generator` detects and
refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forgedsl.errors import GuardError
from forgedsl.lower.job import Job, Node
from forgedsl_runtime.data_types import StepResult
from forgedsl_runtime.endpoints import SyncResult
from forgedsl_runtime.guards import GapGuard, UnchangedWeightsGuard
from forgedsl_runtime.proofs.failures import failure

FILE = "proofs.jsonl"
GAP_AT_AGE_0 = "gap/age_0"


class Proofs:
    """Evidence of one run. The settings of `job` give the dtypes of the samplers, and decide if
    trainer and samplers compute log-probs of the same distribution."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._still = UnchangedWeightsGuard()
        self._gap = GapGuard(_dtype(job))
        self._same_distribution = _same_distribution(job)
        self._bits: dict[str, bool] = {}
        """by sampler: True if its newest weights are proved"""
        self._syncs = self._proved = self._tensors = 0
        self._changed: list[float] = []
        self._placeless: set[str] = set()
        self._steps = self._tokens_at_once = 0
        self._largest: float | None = None
        self._first: list[dict[str, Any]] = []
        self._starts: list[dict[str, Any]] = []

    def record_sync(self, sync: Node, result: SyncResult) -> str:
        """Record a weight sync; return a warning, or "".

        Raises:
            GuardError: updates change no published weight.
        """
        if not result.bytes:  # a rehearsal publishes nothing
            return ""
        self._syncs += 1
        self._bits[sync.to or ""] = result.proved > 0
        self._proved += result.proved > 0
        self._tensors = max(self._tensors, result.proved)
        self._placeless |= {*result.unproved}
        if result.was_random:
            self._starts.append(_start(sync.to or "", result))
        if result.base:
            self._starts.append({
                "proof": "base", "service": sync.to or "", "tensors": result.base, "holds": True,
            })  # fmt: skip
        if result.changed is not None:
            self._changed.append(result.changed)
        sampler = self._job.samplers.get(sync.to or "")
        return "" if sampler is None else self._still.check(sync, result, sampler.precision)

    def record_step(self, step: Node, result: StepResult) -> str:
        """Record an optimizer step; return a warning, or "".

        Raises:
            GuardError: trainer and sampler have drifted apart at equal weights, or a proof of the
                first batch does not hold.
        """
        self._first += result.proofs
        if failed := next(filter(None, map(failure, result.proofs)), ""):
            raise GuardError(failed, origin=step.origin)
        gap = result.gaps.get(GAP_AT_AGE_0)
        if gap is not None:
            self._steps += 1
            self._largest = max(gap, self._largest or 0.0)
        if not self._same_distribution:
            return ""
        return self._gap.check(step, gap, proved=all(self._bits.values()))

    def lines(self) -> list[dict[str, Any]]:
        """Return one record for each proof that the run has made or has turned off."""
        found: list[dict[str, Any]] = []
        if self._syncs:
            found.append({
                "proof": "publications", "syncs": self._syncs, "proved": self._proved,
                "tensors": self._tensors, "unproved_tensors": sorted(self._placeless),
                "least_changed": min(self._changed, default=None),
            })  # fmt: skip
        if self._steps:
            found.append({
                "proof": "gap", "steps": self._steps, "largest_mean": self._largest,
                "guarded": self._same_distribution,
            })  # fmt: skip
        off = self._job.proofs.off
        found += [{"proof": name, "off": reason} for name, reason in off.items()]
        return [*self._starts, *self._first, *found]

    def write(self, folder: Path, others: Iterable[dict[str, Any]] = ()) -> None:
        """Append the records to proofs.jsonl, those of `others` first."""
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in (*others, *self.lines()))


def _start(service: str, result: SyncResult) -> dict[str, Any]:
    """Return the proof line of a sampler that had random weights before this publication."""
    line = {"proof": "start", "service": service, "tensors": result.proved}
    if result.proved:
        return line | {"holds": True}
    return line | {"holds": None, "why": "this publication was not compared bit for bit"}


def _dtype(job: Job) -> str:
    """Return the coarsest dtype of the samplers."""
    found = {sampler.precision for sampler in job.samplers.values()}
    return next((dtype for dtype in ("bf16", "f16") if dtype in found), "f32")


def _same_distribution(job: Job) -> bool:
    """True if every sampler draws from the distribution whose log-probs its trainer computes: same
    temperature, whole vocabulary."""
    temperatures = {each.temperature for each in job.trainers.values() if each.trained}
    settings = [sampler.sampling for sampler in job.samplers.values()]
    return all(
        {each.temperature} == temperatures
        and each.top_p == 1.0
        and not each.top_k
        and not each.min_p
        for each in settings
    )
