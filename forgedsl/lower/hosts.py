"""Which hosts a job uses: the same for what is submitted and for what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pydantic, which building alone has no use for
    from forgedsl.lower.job import Job, Mesh


def num_hosts(job: Job) -> int:
    """Return the number of hosts that the plan uses."""
    meshes = [service.mesh for service in job.services.values()]
    used = [hosts_of(mesh, replica).stop for mesh in meshes for replica in range(mesh.replicas)]
    return max(job.launcher.pools + 1, *used)


def hosts_of(mesh: Mesh, replica: int = 0) -> range:
    """Those of a replica, side by side; the first ones where the plan has not placed it."""
    first = min((p.host for p in mesh.places if p.replica == replica), default=0)
    return range(first, first + mesh.hosts)
