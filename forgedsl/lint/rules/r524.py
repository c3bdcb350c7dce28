"""R524 format-pays: the format of an answer earns at least as much as its correctness.

The format is easier: it is learned in a few steps. If it earns as much as the answer, there is
little incentive left to find the answer. See open-rs #2. Give correctness the larger weight.

    score = 0.1 * correct + 0.9 * thinking           # fires
    score = thinking + 0.1 * brevity                 # fires: nothing looks at the target
    score = 0.9 * correct + 0.1 * thinking           # silent
    score = correct * thinking                       # silent: a form without an answer gets 0

The rule compares what a completion can gain: by a right answer (rewards of the library that read
the target), by tags and patterns around a wrong answer, and by its length. The answer must count
most.
"""

from forgedsl.ir.program import Constructor, RewardDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import is_of_length, score_of
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
ANSWER, FORM = ("math_equal", "exact", "contains"), ("think_tags", "format_regex")


def check(view: View) -> Findings:
    used = {step.receiver for step in view.program.flow if Role.SCORES in step.roles}
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        if rubric.name not in used or not score.is_known:
            continue
        parts = {name: _part(reward) for name, reward in score.rewards.items()}
        pay = {"answer": 0.0, "form": 0.0, "": 0.0}
        for name, reward in score.rewards.items():
            gains = score.change_by(name)
            if is_of_length(reward, view) and min(gains, default=0.0) > 0:
                parts[name] = "length"
        answers = [name for name, part in parts.items() if part == "answer"]
        for name, part in parts.items():
            if part != "length":
                wrong = answers if part == "form" else ()
                pay[part] += max(score.change_by(name, least=wrong), default=0.0)
        short = {n: max(score.change_by(n)) for n, part in parts.items() if part == "length"}
        if 0 < pay["answer"] < max(short.values(), default=0.0):
            name = max(short, key=short.__getitem__)
            yield finding(
                f"`{name}` earns {short[name]:g}, a right answer {pay['answer']:g}",
                score.score.expr.span,
                help="let the answer weigh more than its length",
            )
        if pay["form"] > 0 and pay["form"] >= pay["answer"] and pay["answer"] >= 0:
            what = f"{pay['form']:g} for the form, {pay['answer']:g} for the answer"
            yield finding(
                f"a form without an answer earns a reward: {what}",
                score.score.expr.span,
                help="let the answer weigh several times as much as the form",
            )


def _part(reward: RewardDecl) -> str:
    body = reward.body
    if not isinstance(body, Constructor):
        reads = len(getattr(body, "fields", ())) > 1  # a user's reward that reads the target
        return "answer" if reads else ""
    if body.name in FORM:
        return "form"
    return "answer" if body.name in ANSWER and body.args.get("text") is None else ""
