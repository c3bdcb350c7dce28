"""X803 effect: a Python reward has effects that it does not declare.

    reward tests(r: Rollout, target: str) -> f32 = checks.run            # fires: subprocess.run
    reward tests(r: Rollout, target: str) -> f32 = checks.run {
      effects = [exec], timeout = 20s, memory = 2GiB                     # silent
    }

Declared effects decide how a reward runs: `exec` and `net` in worker processes with a timeout; a
reward that is not pure is never cached or replayed. Declare the effects. `exec` includes `net` and
`io`, `net` includes `io`, `gpu` includes `random`. The file is read with its imports resolved,
never run. A judge behind an endpoint (a service `openai`) has the effect `net`.
"""

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.services.registry import kind_of

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        judge, declared = judge_of(reward), reward.settings["effects"].value
        if judge is None or "net" in covered(declared):
            continue
        service = view.program.services[judge.args["service"]]
        if kind_of(service.ctor).remote:
            yield finding(
                f"reward `{reward.name}` asks `{service.settings['url'].value}`, and does not "
                "declare `net`",
                place_of(reward, view, "effects"),
                related=(Label(text="effect net", span=service.name_span),),
                help=f"`{{ effects = [{', '.join(sorted({*declared, 'net'}))}] }}`",
            )
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


def covered(declared: list[str]) -> frozenset[str]:
    from forgedsl.types import effects  # imported late: most programs have no Python

    return effects.covered(declared)
