"""X811 reward-of-nothing: a Python reward pays for its own failure, or ignores the answer.

    except ValueError:
        return 1.0               # fires: what cannot be read is worth as much as a right answer
    def score(response): print(response)                 # fires: nothing is returned
    except ValueError:
        raise                    # silent

The rule also fires if some path returns nothing, if all paths return the same value, and for an
environment or agent: `except ValueError: return Step(rewards={"solved": 1.0})`.

Text that makes the parser fail is easy to write, and the policy finds it (CoursIA #10504, NeMo-RL
#431). Raise instead: then `on_error` of the rubric decides the score. The file is read, never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import (
    PythonClass,
    python_environments,
    scored_in,
    scores_by_return,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    from forgedsl.lint.python_returns import wrong  # imported late: most programs have no Python

    for env in python_environments(view):
        paid = next(_paid(env), None)
        if paid is not None:
            yield finding(
                f"{env.what} `{env.env.name}` pays for an error",
                env.env.name_span,
                related=(Label(text="here", span=env.at(paid)),),
                help="raise, and `on_error` of the rubric decides; or give 0 for it",
            )
    for found in python_rewards(view):
        what, node = wrong(found.definition)
        if node is not None:
            yield finding(
                f"reward `{found.reward.name}` {what}",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help="raise, and `on_error` of the rubric decides; return a number otherwise",
            )


def _paid(env: PythonClass) -> Iterator[python.AST]:
    """Yield what gives a positive reward inside of `except`."""
    import ast as python

    for method in env.methods.values():
        for handler in python.walk(method):
            if not isinstance(handler, python.ExceptHandler):
                continue
            for place, numbers in scored_in(handler):
                is_score = isinstance(place, python.Call) or scores_by_return(env, method)
                if is_score and any(number > 0 for number in numbers):
                    yield place
