"""L424 clip-range: the bounds of a clipped ratio are not those of a ratio near 1.

A ratio is 1 on policy. Bounds in percent never clip, and bounds that exclude 1 clip everything. The
ratio of a whole sequence (exponential of its mean log-ratio) changes so little that bounds meant
for tokens never clip it: GSPO (2507.18071) uses 3e-4 and 4e-4, where PPO uses 0.2 (AstrAI #50, TRL
#3834 and #4732, SkyRL #133). Write the bounds around 1, of the size that the ratio needs.

    clip(ratio, 1 - 20, 1 + 20)                      # fires: percent
    clip(ratio, -0.2, 0.2)                           # fires: 1 is outside
    loss = rl.gspo(clip_low = 0.2, clip_high = 0.2)  # fires: of a sequence
    clip(ratio, 1 - 0.2, 1 + 0.28)                   # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import wrong_clip_bounds
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None and loss.function.module:
            continue
        for node, low, high, what in loss.cached(wrong_clip_bounds):
            yield finding(
                f"the ratio is clipped to [{low:g}, {high:g}]: {what}",
                loss.spot(node),
                help="`exp(mean(logprob - behavior, T, mask))` is the ratio of a sequence"
                if "mean" in what
                else "3e-4 and 4e-4 are published for ratios of sequences"
                if "sequence" in what
                else "`clip(ratio, 1 - 0.2, 1 + 0.28)`: distances from 1, not percent",
            )
