"""R501 constant-reward: a reward that has one value, whatever the completion.

It moves no advantage: after the group baseline it is gone. In TRL #3857 all rewards but one had a
deviation of 0.

    reward brevity(r: Rollout) -> f32 = clamp(2.0 + r.num_tokens / 64, 0.0, 1.0)     # fires: 1
    reward long = rl.overlong(soft = 9000, hard = 10000)     # fires where max_tokens is 8192
    reward brevity(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 64, 0.0, 1.0)     # silent

The value is the interval of the body, with the sampler's `max_tokens`.
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
                f"reward `{reward.name}` is always {found.lo:g}",
                place_of(reward, view),
                help="it changes no advantage: correct its bounds, or remove it",
            )
