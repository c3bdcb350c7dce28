"""R501 constant-reward: a reward has the same value for every completion.

It changes no advantage, because the group baseline cancels it, so nothing is learned from it. In
TRL #3857 all rewards but one had a standard deviation of 0.

    reward brevity(r: Rollout) -> f32 = clamp(2.0 + r.num_tokens / 64, 0.0, 1.0)     # fires: 1
    reward long = rl.overlong(soft = 9000, hard = 10000)     # fires where max_tokens is 8192
    reward brevity(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 64, 0.0, 1.0)     # silent

Correct the formula, or remove the reward. The rule computes the interval of the body, with lengths
up to the sampler's `max_tokens`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, reward_interval
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        found = reward_interval(reward, view)
        if found is not None and found.is_point and found.finite:
            yield finding(
                f"reward `{reward.name}` is {found.lo + 0.0:g} for every answer",
                place_of(reward, view),
                help="correct its bounds, or remove it: a constant changes no advantage",
            )
