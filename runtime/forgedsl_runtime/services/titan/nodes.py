"""What the nodes of a job do with a trainer."""

from __future__ import annotations

from forgedsl.lower import job as spec
from forgedsl.types.flow import Role


def most_updates(job: spec.Job, name: str) -> int:
    """Return the largest number of updates in a step of a trainer."""
    mine = (n for n in job.nodes if Role.UPDATES in n.roles and n.target == name)
    return max((node.epochs * node.minibatches for node in mine), default=1)


def generator_dtype(job: spec.Job, name: str) -> str:
    """Return the dtype of the generator that gets the weights of a trainer."""
    targets = [node.to for node in _transfers(job, name)]
    return job.services[targets[0] if targets and targets[0] else name].dtype


def sends_adapter(job: spec.Job, name: str) -> bool:
    """Return True if the adapter of a trainer is published without the weights that it is added
    to."""
    return any(node.weights == "adapter" for node in _transfers(job, name))


def transport_of(job: spec.Job, name: str) -> str:
    """Return the name of the transport of a trainer's weights."""
    chosen = [node.transport for node in _transfers(job, name)]
    return chosen[0] if chosen else "shm"


def _transfers(job: spec.Job, name: str) -> list[spec.Node]:
    return [node for node in job.nodes if Role.TRANSFERS in node.roles and node.target == name]
