"""R505 unsandboxed-exec: a reward executes code without a memory limit.

Code written by a policy will, sooner or later, allocate all memory of the host or never return. A
reward with `exec` runs in worker processes of its own; set their `memory`. In LightningRL #1 such
code ran with all rights of the trainer, and in NeMo-RL #816 it took its worker down.

    reward tests(r: Rollout, cases: list[str]) -> f32 = sandbox.run { effects = [exec] }   # fires
    ... { procs = 8, timeout = 20s, memory = 2GiB, effects = [exec] }                      # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        settings = reward.settings
        if "exec" in settings["effects"].value and settings["memory"].value is None:
            yield finding(
                f"reward `{reward.name}` executes code without a memory limit",
                place_of(reward, view, "effects"),
                help="`memory = 2GiB`: its worker processes are then limited to it",
            )
