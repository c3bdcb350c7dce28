"""P227 export-on-one-host: weights are exported to a disk of one host, in a run of several.

    cluster { hosts = 4 }, checkpoint { export = hf("/tmp/export") }            # fires
    checkpoint { export = hf("export") }                      # silent: in the run folder

`/tmp`, `/dev/shm`, `/raid`, `/mnt/nvme0` and `/scratch/local` are another disk on every host, and
are often emptied when the allocation ends: the weights are on the trainer's first host, or nowhere.
Export to the run folder, which all hosts share, or to another shared path.
"""

import re

from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
LOCAL = (
    r"(file://)?/(tmp|var/tmp|dev/shm|run|raid\d*|local(_?scratch|disk|_?ssd)?|(local_)?nvme\w*"
    r"|scratch/local|(mnt|opt|media)/(dlami/)?(nvme|ssd|local|resource|ephemeral)\w*"
    r"|ephemeral\w*|ssd\d*)(/|$)"
)
"""folders that by their names are disks of one host"""


def check(view: View) -> Findings:
    checkpoint = view.program.singletons["checkpoint"]
    export = checkpoint.settings["export"]
    if view.planned is None or not isinstance(export.value, Constructor):
        return
    path, used = str(export.value.args["path"]), view.planned[1].hosts_used
    if used > 1 and re.match(LOCAL, path):
        yield finding(
            f"`{path}` is another disk on each of {used} hosts: the weights are on one of them",
            place(export, checkpoint),
            help='`export = hf("export")` is in the run folder, which all hosts share',
        )
