"""Lowering shared by kinds of services: sampling settings of a job."""

from __future__ import annotations

from typing import Any

from forgedsl.ir.program import Decl
from forgedsl.job.parts import Mesh, Place, Sampling
from forgedsl.sizes.meshes import MeshPlan, value


def lower_mesh(mesh: MeshPlan) -> Mesh:
    return Mesh(
        name=mesh.name,
        hosts=mesh.hosts,
        procs=mesh.procs,
        gpus=mesh.gpus,
        cpus=mesh.cpus,
        device="gpu" if mesh.device == "gpu" else "cpu",
        replicas=mesh.replicas,
        places=tuple(
            Place(replica=p.replica, host=p.host, gpus=p.gpus)
            for p in mesh.places
            if any(place.gpus or place.host for place in mesh.places)
        ),
    )


def lower_sampling(decl: Decl) -> Sampling:
    """Lower `sampling { ... }` of a generator."""
    names = Sampling.model_fields
    given = {name: plain(decl, f"sampling.{name}") for name in names}
    given["stop"] = tuple(given["stop"] or ())
    # a service that only judges has no sampling settings
    given["max_tokens"] = given["max_tokens"] or 1
    return Sampling(**given)


def plain(decl: Decl, key: str) -> Any:
    """Return a setting as the job has it: None if the runtime derives its value."""
    return value(decl, key)
