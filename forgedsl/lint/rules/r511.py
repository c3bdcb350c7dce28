"""R511 observation-scored: a reward reads the text of a trajectory, and tools wrote parts of it.

    reward found = rl.contains                      # fires: the search result has it
    reward found(r: Rollout) -> f32 = clamp(r.rewards.found, 0.0, 1.0)     # silent

`r.response` of a trajectory is everything after the first prompt: the turns of the policy and what
the environment answered. `contains` then rewards a policy that only makes a tool return the target,
as in verl #6392. Compare in `step` of the environment, where `turn.text` is what the policy wrote:
`return Step(rewards={"found": ...}, done=True)`.
"""

from forgedsl.diagnostics import Label
from forgedsl.ir.program import rewards_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import has_turns
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    program = view.program
    played = {step.name: step for step in program.flow if has_turns(step)}
    reported: set[str] = set()
    for step in program.flow if played else ():
        plays = [played[read.edge] for read in step.inputs if read.edge in played]
        for name in rewards_of(program, step.receiver) if Role.SCORES in step.roles else ():
            body = program.rewards[name].body
            if plays and name not in reported and getattr(body, "name", "") == "contains":
                reported.add(name)
                yield finding(
                    f"reward `{name}` also finds its text in answers of the environment",
                    place_of(program.rewards[name], view),
                    related=(Label(text="a trajectory of several turns", span=plays[0].span),),
                    help="compare `turn.text` in `step` of the environment, and read the reward "
                    "that it gives: `r.rewards.NAME`",
                )
