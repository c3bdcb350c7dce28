"""X803 effect: a Python reward does more than it declares.

    reward tests(r: Rollout, target: str) -> f32 = checks.run            # fires: subprocess.run
    reward tests(r: Rollout, target: str) -> f32 = checks.run {
      effects = [exec], timeout = 20s, memory = 2GiB                     # silent
    }

Declared effects decide how it is run: `exec` and `net` in worker processes with a timeout, and what
is not pure is never cached or replayed. `exec` covers net and io, `net` covers io, `gpu` covers
random. The file is read with its imports resolved, never run.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    from forgedsl.types.effects import covered  # reads Python, which most programs have none of

    for found in python_rewards(view):
        declared = found.reward.settings["effects"].value
        hidden = [use for use in found.uses if use.effect not in covered(declared)]
        if not hidden:
            continue
        first = hidden[0]
        effects = sorted({*declared, *(use.effect for use in hidden)})
        yield finding(
            f"reward `{found.reward.name}` calls `{first.name}`, and does not declare "
            f"`{first.effect}`",
            place_of(found.reward, view, "effects"),
            related=(Label(text=f"effect {first.effect}", span=found.span(first)),),
            help="the processes of rewards get no GPU (R510)"
            if first.effect == "gpu"
            else f"`effects = [{', '.join(effects)}]`",
        )
