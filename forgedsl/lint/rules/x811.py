"""X811 reward-of-nothing: a Python reward that pays for its own failure, or for nothing at all.

    except ValueError:
        return 1.0               # fires: what cannot be read is worth as much as a right answer
    def score(response): print(response)                 # fires: nothing is returned
    except ValueError:
        raise                    # silent

It fires too where some way returns nothing, and where every way returns the same.

What makes the parser fail is easy to write, and the policy finds it (CoursIA #10504, NeMo-RL #431).
Raise instead: `on_error` of the rubric decides. The file is read, never run.
"""

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.source import Span

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    from forgedsl.lint.python_returns import wrong  # reads Python, which most programs have none of

    for found in python_rewards(view):
        what, node = wrong(found.definition)
        if node is not None:
            start = found.source.line_starts[node.lineno - 1] + node.col_offset
            line = found.source.line(node.lineno)
            span = Span(found.source.name, start, start + len(line) - node.col_offset)
            yield finding(
                f"reward `{found.reward.name}` {what}",
                place_of(found.reward, view),
                related=(Label(text="here", span=span),),
                help="raise, and `on_error` of the rubric decides; return a number otherwise",
            )
