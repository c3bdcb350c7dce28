"""X868 output-trusted: a word in the output says that tests have passed: the policy can print it.

    program = code + "\\n" + tests + "\\nprint('ALL PASSED')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return float("ALL PASSED" in done.stdout)                        # fires
    return sum(judge(code, cases, limits=LIMITS)) / len(cases)       # silent

Code of the policy and its tests are one program, so the policy prints the word itself, and ends
the program before the tests (skypilot #9836 and verl #7853 show how rewards by tests are cheated).
Let each test report its result where the code of the policy cannot write:
`forgedsl_runtime.sandbox.judge` does. The rule is silent if the word is not constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
RUNS = ("subprocess.", "asyncio.create_subprocess")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.scores import scorers

    for scorer in scorers(view):
        events = [event for flow in scorer.flows for event in flow.events]
        asked = next((event for event in events if _asks(event)), None)
        if asked is not None and any(map(_runs_both, events)):
            yield finding(
                f"{scorer.what} trusts a word in the output of a program that contains code of the "
                "policy: the code can print it",
                scorer.span,
                related=(label(view, "here", asked.file, asked.node),),
                help="let `forgedsl_runtime.sandbox.judge(code, cases)` run the tests: their "
                "results do not pass through the output",
            )


def _asks(event: Event) -> bool:
    """True for a comparison of the output of a program with a constant word."""
    from forgedsl.lint.follow.values import OUTPUT

    sides = event.values if event.kind == "compare" else ()
    if event.kind == "call" and event.name.rpartition(".")[2] in ("endswith", "startswith"):
        sides = (event.receiver, *event.values)
    words = [value.const for value in sides if isinstance(value.const, str) and value.const.strip()]
    return bool(words) and any(OUTPUT in value.all for value in sides)


def _runs_both(event: Event) -> bool:
    """True if a program is run that depends on text of the policy and on the row."""
    from forgedsl.lint.follow.values import READS_RESPONSE, READS_TARGET

    is_run = event.kind == "call" and event.name.startswith(RUNS)
    given = [*event.values, *event.keywords.values()] if is_run else []
    return any({READS_RESPONSE, READS_TARGET} <= value.all for value in given)
