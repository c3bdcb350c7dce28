"""P220 tensor-parallel-across-hosts: layers are split over the network between hosts.

Tensor parallelism sends activations twice in every layer, which links inside of a host carry and a
network between hosts does not: steps become many times slower (OpenRLHF #758, vime #64).

    trainer { hosts = 2, procs = 4, parallel { tp = 8 } }                    # fires
    trainer { hosts = 2, procs = 4, parallel { tp = 4, dp_shard = 2 } }      # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.planned is None:
        return
    for mesh in view.planned[1].meshes:
        tp = mesh.degrees.get("tp", 1)
        if mesh.hosts > 1 and tp > mesh.procs:
            service = view.program.services[mesh.service]
            yield finding(
                f"tp = {tp} of `{mesh.service}` spans hosts of {mesh.procs} processes",
                place(service.settings["parallel.tp"], service),
                help=f"`tp = {mesh.procs}`, and the rest by `dp_shard` or `replicas`",
            )
