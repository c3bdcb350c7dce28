"""X812 call-without-timeout: a Python reward that waits for ever, or makes all others wait.

A request to a server that does not answer, or a program that does not end, holds a worker until
the timeout of the reward kills it with all it knows: one slow judge then costs the scores of a
whole step. In a coroutine a call that blocks holds up every other call of its process. Of four
runs whose rewards hung, two ended within half an hour (compose-rl #87).

    requests.post(url, json=text)                        # fires
    requests.post(url, json=text, timeout=10)            # silent
    async def score(response): requests.post(...)        # fires: use httpx.AsyncClient

The file is read with its imports resolved, never run.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.types.effects import Use

finding = rule(__doc__, "W")
VERBS = ("get", "post", "put", "patch", "delete", "head", "request")
WAITS = {
    *(f"requests.{verb}" for verb in VERBS),
    *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")),
    "urllib.request.urlopen",
}
"""what waits without end unless it is told; httpx gives up after five seconds by itself"""
BLOCKS = WAITS | {f"httpx.{verb}" for verb in VERBS}


def check(view: View) -> Findings:
    for found in python_rewards(view):
        for use in found.uses:
            what = _wrong(found, use)
            if what:
                yield finding(
                    f"reward `{found.reward.name}` {what}",
                    place_of(found.reward, view),
                    related=(Label(text="here", span=found.span(use)),),
                    help="an awaited call, or a reward without `async`: it gets threads"
                    if "blocks" in what
                    else "`timeout=10`, below the timeout of the reward",
                )
                break


def _wrong(found: PythonReward, use: Use) -> str:
    if type(found.definition).__name__ == "AsyncFunctionDef" and use.name in BLOCKS:
        return f"blocks all calls of its process by `{use.name}`"
    waits = use.name in WAITS and not {"timeout", None} & {*use.keywords}
    return f"calls `{use.name}` without a timeout" if waits else ""
