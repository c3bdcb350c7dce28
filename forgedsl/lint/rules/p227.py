"""P227 export-on-one-host: weights are exported to a disk of one host, in a run of several.

    cluster { hosts = 4 }, checkpoint { export = hf("/tmp/export") }            # fires
    checkpoint { export = hf("export") }                      # silent: in the run folder

`/tmp`, `/scratch` of a node and `/dev/shm` are another disk on every host, and are emptied when the
allocation ends: the weights are on the trainer's first host, or nowhere. Export to the run folder,
which all hosts share, or to another shared path.
"""

from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
LOCAL = ("/tmp/", "/var/tmp/", "/dev/shm/", "/local/", "/localscratch/", "/run/")


def check(view: View) -> Findings:
    checkpoint = view.program.singletons["checkpoint"]
    export = checkpoint.settings["export"]
    if view.planned is None or not isinstance(export.value, Constructor):
        return
    path, used = str(export.value.args["path"]), view.planned[1].hosts_used
    if path.startswith(LOCAL) and used > 1:
        yield finding(
            f"`{path}` is another disk on each of {used} hosts: the weights are on one of them",
            place(export, checkpoint),
            help='`export = hf("export")` is in the run folder, which all hosts share',
        )
