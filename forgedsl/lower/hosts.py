"""Hosts that a job uses; the same numbers for the submitted script and for the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports pydantic, which building does not need
    from forgedsl.lower.job import Job, Mesh


def num_hosts(job: Job) -> int:
    """Return the number of hosts that the plan uses."""
    meshes = [service.mesh for service in job.services.values()]
    used = [hosts_of(mesh, replica).stop for mesh in meshes for replica in range(mesh.replicas)]
    return max(job.launcher.pools + 1, *used)


def hosts_of(mesh: Mesh, replica: int = 0) -> range:
    """Return the consecutive hosts of a replica; the first ones if the plan has not placed it."""
    first = min((p.host for p in mesh.places if p.replica == replica), default=0)
    return range(first, first + mesh.hosts)
