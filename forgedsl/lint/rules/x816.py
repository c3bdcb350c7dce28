"""X816 target-unread: a Python reward does not read the target it takes, and no other reward does.

    def score(response, target): return float("<answer>" in response)     # fires
    def score(response, target): return float(target in answers(response))    # silent
    def form(response): return float("<answer>" in response)      # silent beside a reward that does

The score then does not depend on correctness. In CoursIA #13614 a target that was never passed on
made the correctness 0 throughout. Compare with the target; if a reward needs none, leave out the
parameter. A reward that calls a service or runs a program, which may judge without a target, is
silent.
"""

from __future__ import annotations

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.ir.program import Constructor, Function, RewardDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
ANSWERS = ("math_equal", "exact", "contains")
MAY_HOLD = ("row", "rollout", "messages")
"""sources that may contain the answer too, as columns may"""


def check(view: View) -> Findings:
    if view.program.environments or any(map(_reads, view.program.rewards.values())):
        return
    found = [one for one in python_rewards(view) if not _is_told(one)]
    asks = any(use.effect in ("net", "exec") for one in found for use in one.uses)
    if asks or any(_uses_answer(one) for one in found):
        return
    for one in found:
        for name in _given(one, "target"):
            yield finding(
                f"reward `{one.reward.name}` never reads `{name}`, and nothing else looks at the "
                "target",
                place_of(one.reward, view),
                related=(Label(text="given here", span=one.definition_span),),
                help=f"compare the answer with `{name}`, or leave the parameter out",
            )


def _reads(reward: RewardDecl) -> bool:
    """True if a reward that is not in Python reads the target."""
    body, judge = reward.body, judge_of(reward)
    if isinstance(body, Function):
        return len(body.fields) > 1
    if judge is not None:
        return "{target}" in judge.args["prompt"] or "{row." in judge.args["prompt"]
    return isinstance(body, Constructor) and body.name in ANSWERS and body.args.get("text") is None


def _is_told(one: PythonReward) -> bool:
    """True if X811 reports the reward, because it is constant, for example."""
    import ast as python

    from forgedsl.lint.python_returns import wrong

    returns = [n.value for n in python.walk(one.definition) if isinstance(n, python.Return)]
    constant = all(isinstance(value, python.Constant) for value in returns)
    return constant or wrong(one.definition)[1] is not None


def _given(one: PythonReward, source: str) -> list[str]:
    """Return the parameters that get a source as argument."""
    inputs = inputs_of(one.function)
    given = inputs.by_name if isinstance(inputs, Inputs) else {}
    return [name for name, found in given.items() if found == source]


def _uses_answer(one: PythonReward) -> bool:
    """True if a reward reads a parameter that is, or may contain, the target, or takes
    `**kwargs`."""
    import ast as python

    inputs = inputs_of(one.function)
    if not isinstance(inputs, Inputs) or inputs.by_place or "**" in inputs.by_name:
        return True
    read = {
        node.id
        for node in python.walk(one.definition)
        if isinstance(node, python.Name) and isinstance(node.ctx, python.Load)
    }
    holds = {
        name
        for name, source in inputs.by_name.items()
        if source == "target" or source in MAY_HOLD or source.startswith("column")
    }
    return bool(holds & read) or "locals" in read
