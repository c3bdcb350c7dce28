"""Launcher `kubernetes`: a Job with one pod a host that runs job.json, and a Service for names.

With several hosts, each starts a Monarch worker (runtime/forgedsl_runtime/hosts/kubernetes.py).
Their addresses are in WORKERS; the first pod runs the controller. No operator and no access to the
cluster's API is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forgedsl.launchers.base import (
    GIB,
    Allocation,
    Launcher,
    Manifest,
    keyword,
    rendered,
    signature,
)
from forgedsl.records import replace
from forgedsl.settings import STR, Parameter, Type

IMAGE = "forgedsl:latest"
CLAIM = "forge-runs"
MOUNT = "/forge"
PORT = 26600
WORKERS, RANK = "FORGE_WORKERS", "JOB_COMPLETION_INDEX"
"""environment variables of each pod: addresses of all workers, and its own index"""


def manifests(allocation: Allocation, args: Mapping[str, Any]) -> str:
    """Return the manifests for `kubectl apply`."""
    pod = re.sub(r"[^a-z0-9]+", "-", allocation.name.lower()).strip("-")[:50] or "forge"
    return rendered(
        "k8s.yaml.j2",
        allocation,
        pod=pod,
        namespace=args.get("namespace", "default"),
        image=args.get("image", IMAGE),
        account=args.get("service_account"),
        labels=[tuple(label.split("=", 1)) for label in args.get("labels") or ()],
        limits=_limits(allocation),
        claim=CLAIM,
        mount=MOUNT,
        port=PORT,
        notice=allocation.grace,
        workers=",".join(f"tcp://{pod}-{i}.{pod}:{PORT}" for i in range(allocation.hosts)),
    )


def _limits(allocation: Allocation) -> list[tuple[str, Any]]:
    """Return the resource limits of a pod."""
    memory = None if allocation.memory is None else f"{allocation.memory // GIB}Gi"
    found = [
        ("nvidia.com/gpu", allocation.gpus or None),
        ("cpu", allocation.cpus),
        ("memory", memory),
    ]
    return [(name, value) for name, value in found if value is not None]


LAUNCHER = Launcher(
    signature=signature(
        "kubernetes",
        "pods of a Kubernetes cluster",
        Parameter(name="namespace", type=STR),
        Parameter(name="image", type=STR),
        keyword("service_account", replace(STR, optional=True)),
        keyword("labels", Type(base="list", item=STR, optional=True)),
    ),
    max_hosts=None,
    allocation=WORKERS,
    manifest=Manifest(emit="k8s", file="k8s.yaml", what="manifests for Kubernetes", text=manifests),
)
