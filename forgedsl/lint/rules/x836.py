"""X836 exit-code-trusted: code of the policy and its tests are one program, scored by exit code.

    path.write_text(code + "\\n" + tests)
    done = subprocess.run([sys.executable, path], timeout=10)
    return float(done.returncode == 0)                               # fires
    return sum(judge(code, cases, limits=LIMITS)) / len(cases)       # silent

A program that calls `sys.exit(0)`, or `os._exit(0)`, ends before the tests behind it run, with exit
code 0: the policy needs no solution (skypilot #9836, verl #7853). Let each test report its success
in a way that the code of the policy cannot imitate, as `forgedsl_runtime.sandbox.judge` does. The
rule is silent if the score also depends on the output of the program.
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
WRITES = ("write_text", "write_bytes", "write", "communicate", "writelines")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.scores import scorers
    from forgedsl.lint.follow.values import EXIT, OUTPUT

    for scorer in scorers(view):
        trusted = [
            each
            for each in scorer.scores
            if EXIT in each.value.all or (EXIT in each.control and _pays(each.value.const))
        ]
        if not trusted or OUTPUT in trusted[0].value.all | trusted[0].control:
            continue
        if any(_has_both(event) for flow in scorer.flows for event in flow.events):
            yield finding(
                f"{scorer.what} rewards exit code 0 of a program that contains text of the policy",
                scorer.span,
                related=(label(view, "here", trusted[0].file, trusted[0].node),),
                help="`sandbox.judge(code, cases, ...)` runs each test by itself",
            )


def _pays(const: object) -> bool:
    return isinstance(const, int | float) and const > 0


def _has_both(event: Event) -> bool:
    """True if a program is made of text of the policy and of tests."""
    from forgedsl.lint.follow.values import READS_TARGET, RESPONSE

    made = event.name.rpartition(".")[2] in WRITES or event.name.startswith(RUNS)
    given = [*event.values, *event.keywords.values()] if event.kind == "call" and made else []
    return any({RESPONSE, READS_TARGET} <= value.all for value in given)
