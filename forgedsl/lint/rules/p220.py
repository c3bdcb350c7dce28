"""P220 split-across-hosts: communication of every layer goes over the network between hosts.

Tensor parallelism all-reduces activations twice in every layer. Links within a host are fast enough
for that, networks between hosts are not: steps become many times slower (OpenRLHF #758, vime #64).
Context parallelism sends queries, keys, values and outputs of attention, which is less, but is not
overlapped with computation either. The rule fires for `cp` only if the rows would fit within a
host. Keep `tp` and `cp` within a host, and use data parallelism between hosts.

    trainer { hosts = 2, procs = 4, parallel { tp = 8 } }                    # fires
    trainer { hosts = 2, procs = 4, parallel { cp = 8 } }                    # where cp = 4 fits too
    trainer { hosts = 2, procs = 4, parallel { tp = 4, dp_shard = 2 } }      # silent
"""

from math import gcd

from forgedsl.diagnostics import counted
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place
from forgedsl.plan.capacity import TIGHT, plan_memory
from forgedsl.plan.plan import Plan
from forgedsl.records import replace
from forgedsl.services.registry import kind_of
from forgedsl.sizes.meshes import MeshPlan

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.planned is None:
        return
    plan = view.planned[1]
    for mesh in (mesh for mesh in plan.meshes if mesh.hosts > 1):
        tp, cp = (mesh.degrees.get(key, 1) for key in ("tp", "cp"))
        if mesh.procs % tp:
            key, most = "tp", gcd(tp, mesh.procs)
        elif mesh.procs % (tp * cp) and _fits(plan, mesh, gcd(cp, mesh.procs // tp)):
            key, most = "cp", gcd(cp, mesh.procs // tp)
        else:
            continue
        service = view.program.services[mesh.service]
        yield finding(
            f"{key} = {mesh.degrees[key]} of `{mesh.service}` spans hosts of "
            f"{counted(mesh.procs, 'process')}",
            place(service.settings[f"parallel.{key}"], service),
            help=f"`{key} = {most}`, and the rest by `{kind_of(mesh.kind).spread or 'replicas'}`",
        )


def _fits(plan: Plan, mesh: MeshPlan, cp: int) -> bool:
    """True if rows fit with fewer ranks of context parallelism, as far as is known."""
    spread = mesh.degrees["dp_shard"] * mesh.degrees["cp"] // cp
    fewer = replace(mesh, degrees={**mesh.degrees, "cp": cp, "dp_shard": spread})
    meshes = tuple(fewer if each is mesh else each for each in plan.meshes)
    memory = plan_memory(replace(plan.request, meshes=meshes))
    mine = [store for store in memory.stores if mesh.service in store.services]
    known = memory.rank(mesh.service) is not None
    return known and all(store.share <= TIGHT for store in mine)
