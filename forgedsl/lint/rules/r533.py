"""R533 judge-without-answer: the dataset has an answer, and nothing that scores looks at it.

    rubric grade { score = clear, on_truncated = 0.0 }
    reward clear = judge.score(prompt = "{prompt} {response} Is it right? 1 to 5:", scale = [1, 5])
    score = grade(rollout, prompt.target)                        # fires: `{target}` is in no prompt
    prompt = "{prompt} {response} The answer is {target}. ..."   # silent

A judge that does not know the answer grades what sounds right: models grade wrong solutions of
arithmetic problems as right, and less often so if they are shown the answer (2306.05685). Put
`{target}` into the prompt of the judge, or add a reward that compares. If the target is for
something else, leave `prompt.target` out of the call: the rule fires only where the flow passes it.
"""

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of
from forgedsl.ir.program import (
    Constructor,
    FlowStep,
    Function,
    PythonFunction,
    RewardDecl,
    rewards_of,
)
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    program = view.program
    for step in program.flow:
        if Role.SCORES not in step.roles or not _gives_target(step):
            continue
        rewards = [program.rewards[name] for name in rewards_of(program, step.receiver)]
        judges = [reward for reward in rewards if judge_of(reward) is not None]
        if judges and not any(map(_may_read, rewards)):
            yield finding(
                f"`{step.receiver}` is given the target, and judge `{judges[0].name}` is not shown "
                "it",
                place_of(judges[0], view),
                related=(Label(text="the target", span=step.span),),
                help="say in the judge's prompt what is right: `... The answer is {target}. ...`",
            )


def _gives_target(step: FlowStep) -> bool:
    return any(read.attribute == "target" for read in step.inputs)


def _may_read(reward: RewardDecl) -> bool:
    """True if a reward reads the target, a column, or may do so."""
    body, judge = reward.body, judge_of(reward)
    if judge is not None:
        return "{target}" in judge.args["prompt"] or "{row." in judge.args["prompt"]
    if isinstance(body, PythonFunction):
        return True
    if isinstance(body, Function):
        return len(body.fields) > 1
    return isinstance(body, Constructor) and body.name in ("math_equal", "exact", "contains")
