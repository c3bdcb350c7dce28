"""Grace time: the seconds that a run needs to stop after its scheduler's notice.

Plan --> seconds for the trainer's part of a step and a checkpoint, at least LEAST

Schedulers are asked for this notice (`launchers/`). The controller abandons a step that cannot end
in time. Sampling is aborted at once, so its time does not count.
"""

from __future__ import annotations

import math

from forgedsl.ir.graph import Graph
from forgedsl.plan.plan import Plan
from forgedsl.services.registry import kind_of
from forgedsl.settings import Auto
from forgedsl.types.flow import Role

LEAST = 120
"""minimum seconds: for stopping services, and for models of unknown size"""
MARGIN = 1.5
"""safety factor: a step may take longer than planned"""
DISK = 2**30
"""bytes/s at which a checkpoint is written to a shared file system"""
STEP = 10
"""the result is a multiple of these seconds"""


def grace(graph: Graph, plan: Plan) -> int:
    """Return `checkpoint.grace` if it is set, else the planned seconds."""
    settings = plan.request.program.singletons["checkpoint"].settings
    declared = settings["grace"].value
    return planned_grace(graph, plan) if isinstance(declared, Auto) else math.ceil(declared)


def planned_grace(graph: Graph, plan: Plan) -> int:
    """Return the seconds of the trainer's part of a step and of its checkpoint."""
    trained = {node.target: node.name for node in graph.having(Role.UPDATES)}
    steps = set(trained.values())
    seconds = sum(stage.seconds for stage in plan.cost.stages if stage.node in steps)
    written = sum(_checkpoint_bytes(plan, name) for name in trained) / DISK
    return max(LEAST, STEP * math.ceil((MARGIN * seconds + written) / STEP))


def _checkpoint_bytes(plan: Plan, service: str) -> int:
    """Return the bytes of weights and moments; 0 for a model of unknown size."""
    dims = plan.request.dims[service]
    if dims is None:
        return 0
    decl = plan.request.program.services[service]
    return kind_of(decl.ctor).checkpoint_bytes(decl, dims)
