"""Finds which columns of its datasets a job needs, and how their rows are read.

Job, dataset --> rewards that judge its completions, columns that those require
"""

from __future__ import annotations

from typing import NamedTuple

from forgedsl.lower.job import Job
from forgedsl.types.flow import Role

READS = frozenset({Role.PROMPTS, Role.PAIRS, Role.SUPERVISED})


class Reading(NamedTuple):
    """How the rows of a dataset are read."""

    role: Role
    """one of `READS`"""
    seq_len: int
    """tokens of a row of the trainer; 0 without a trainer"""
    rows: int
    """rows of a microbatch; 0 without a trainer"""


def read_by(job: Job, dataset: str) -> Reading:
    """Return how the rows of a dataset are read. An eval reads prompts unless it measures a
    loss."""
    measured = (job.losses[e.loss] for e in job.evals.values() if e.dataset == dataset and e.loss)
    of_evals = (Role.PAIRS if loss.paired else Role.SUPERVISED for loss in measured)
    nodes = (next(iter(node.roles & READS)) for node in job.nodes if node.target == dataset)
    read = next(nodes, next(of_evals, Role.PROMPTS))
    trainer = job.trainers.get(job.trained_service)
    if trainer is None:
        return Reading(read, 0, 0)
    return Reading(read, trainer.batch.seq_len, trainer.batch.rows)


def per_step(job: Job, dataset: str) -> int:
    """Return the number of prompts or pairs that a step draws from a dataset."""
    return sum(node.count or 0 for node in job.nodes if node.target == dataset)


def columns_of(job: Job) -> frozenset[str] | None:
    """Return the columns that rewards take if a row has them; None if they take whole rows."""
    sources = {source for reward in job.rewards.values() for source in reward.inputs.values()}
    named = frozenset(s.partition(" ")[2] for s in sources if s.startswith("column"))
    return None if "row" in sources else named


def needed(job: Job, dataset: str) -> dict[str, str]:
    """Return the columns that rewards require, each with the reward and its span."""
    return {
        source.removeprefix("column "): f"reward {name} (at {job.origins.get(name, '')})"
        for name in sorted(judges(job, dataset))
        for source in (*job.rewards[name].inputs.values(), *job.rewards[name].positional)
        if source.startswith("column ")
    }


def judges(job: Job, dataset: str) -> set[str]:
    """Return the rewards of completions of a dataset's prompts."""
    drawn: set[str] = set()
    scores = {e.score for e in job.evals.values() if e.dataset == dataset and e.score}
    for node in job.nodes:  # in topological order
        if (Role.PROMPTS in node.roles and node.target == dataset) or drawn & {
            i.edge for i in node.inputs
        }:
            drawn.add(node.name)
            if Role.SCORES in node.roles:
                scores.add(node.target)
                scores |= {name for name, reward in job.rewards.items() if reward.monitor}
    return {r for s in scores for r in (job.rubrics[s].rewards if s in job.rubrics else (s,))}
