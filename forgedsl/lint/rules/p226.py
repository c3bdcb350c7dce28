"""P226 names-missing: the launcher names fewer hosts than the plan uses, or one twice.

    launcher = ssh(hosts = ["a1", "a2"])
    service trainer : titan(policy) { hosts = 4, procs = 8 }       # fires: two names for 4 hosts
    launcher = ssh(hosts = ["a1", "a2", "a3", "a4"])               # silent

    launcher = ssh(hosts = ["a1", "a2", "a2", "a4"])               # fires: two hosts are one

The plan numbers the hosts from 0, and the launcher starts host 2 on the third name. If there is no
third name, the run cannot start. If a name occurs twice, two hosts of the plan use the GPUs of one
machine. Name all hosts, or use fewer.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    launcher = view.program.singletons["launcher"].settings["value"].value
    names = getattr(launcher, "args", {}).get("hosts")
    if view.planned is None or not isinstance(names, list):
        return
    used = view.planned[1].hosts_used
    twice = next((name for name in names if names.count(name) > 1), None)
    if len(names) < used:
        yield finding(
            f"the launcher names {len(names)} hosts, and the plan uses {used}",
            launcher.span,
            help=f"name {used - len(names)} more, or give services fewer `hosts` or `replicas`",
        )
    elif twice is not None and used > 1:
        yield finding(
            f"the launcher names `{twice}` twice: two hosts of the plan would be one machine",
            launcher.span,
            help="name each host once",
        )
