"""P225 hosts-unused: the plan leaves at least half of the hosts without any process.

    cluster { hosts = 12, gpus = 8 }
    service trainer : titan(policy) { hosts = 2, procs = 8 }     # fires: 2 of 12 hosts compute

The idle hosts are paid for and change nothing. Give services more `hosts` or `replicas`, or ask for
fewer hosts. `forgec plan` shows which service runs on which host.

    cluster { hosts = 2, gpus = 8 }                              # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    cluster = view.program.singletons["cluster"]
    hosts = cluster.settings["hosts"]
    if view.planned is None or hosts.origin.span is None or not isinstance(hosts.value, int):
        return
    if cluster.settings["gpus"].value == 0:
        return  # a profile that tries the program on a CPU
    used, idle = view.planned[1].hosts_used, hosts.value - view.planned[1].hosts_used
    if 2 * used <= hosts.value:
        have, are = ("has" if used == 1 else "have"), ("is" if idle == 1 else "are")
        yield finding(
            f"{used} of {hosts.value} hosts {have} a process, and {idle} {are} idle",
            place(hosts, cluster),
            help=f"`hosts = {used}`, or more `hosts` or `replicas` for the services",
        )
