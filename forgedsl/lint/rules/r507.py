"""R507 nondeterministic-cached: the first value of a random reward is cached for ever.

    reward judge(r: Rollout) -> f32 = remote.score { effects = [random], cache = true }     # fires
    reward judge(r: Rollout) -> f32 = remote.score { effects = [random] }     # silent

The cache is keyed by the reward's inputs, so the first random value becomes the score. Remove
`cache`, or make the reward deterministic.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    seen = {r.reward.name: {use.effect for use in r.uses} for r in python_rewards(view)}
    for reward in view.program.rewards.values():
        effects = {*reward.settings["effects"].value, *seen.get(reward.name, ())}
        if reward.settings["cache"].value and "random" in effects:
            yield finding(
                f"reward `{reward.name}` is random, and its first score is cached",
                place_of(reward, view, "cache"),
                help="remove `cache`, or seed the reward by its input",
            )
