"""D661 eval-without-tools: an eval asks for tools, and has no environment to call them in.

    rollout = generator.play(prompt, env = shop, ...)
    eval held_out { dataset = tasks, score = number }                            # fires
    eval held_out { dataset = tasks, score = solved, env = shop, max_turns = 4 }     # silent

The flow plays the prompts of this dataset in an environment, but in the eval the policy answers
them in one turn, without tools. The eval measures another task, and stays low while the run learns
(torchtitan #3602). Give the eval the `env` and the `max_turns` of the flow. The rule fires if the
environment has tools and its rewards are the flow's score, and if no eval plays in an environment.
"""

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Function
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import played_in
from forgedsl.lint.view import View
from forgedsl.syntax.walk import names
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    evals = list(view.program.evals.values())
    if not view.program.environments or any(e.settings["env"].value is not None for e in evals):
        return
    used = {step.receiver for step in view.program.flow if Role.SCORES in step.roles}
    if not any(_is_of_environment(view, name) for name in used):
        return
    samples = [step for step in view.program.flow if Role.SAMPLES in step.roles]
    if any("env" not in step.settings for step in samples):
        return  # some prompts are answered in one turn
    for step in samples:
        env, dataset = played_in(view, step)
        if env is None or dataset is None or not env.body.tools:
            continue
        for each in evals:
            score = getattr(each.settings["score"].value, "name", "")
            if each.settings["dataset"].value.name != dataset.name:
                continue
            if not _is_of_environment(view, score):  # else F101 reports it
                turns = step.settings["max_turns"].value if "max_turns" in step.settings else 4
                yield finding(
                    f"in `{each.name}` the policy answers the prompts of `{dataset.name}` in one "
                    f"turn, but the flow plays them with the tools of `{env.name}`",
                    each.name_span,
                    related=(Label(text="played here", span=step.span),),
                    help=f"`env = {env.name}, max_turns = {turns}`",
                )


def _is_of_environment(view: View, name: str) -> bool:
    """True if a reward, or one of a rubric, is given by an environment."""
    rewards = view.program.rewards
    if name in view.program.rubrics:
        score = view.program.rubrics[name].settings["score"].value
        read = {".".join(parts) for parts in names(score.expr)}
        return any(_is_of_environment(view, each) for each in read & rewards.keys())
    body = rewards[name].body if name in rewards else None
    found = names(body.statements) if isinstance(body, Function) else ()
    return any("rewards" in parts[1:2] for parts in found)
