"""L424 clip-range: the bounds of a clipped ratio are not those of a ratio near 1.

A ratio is 1 on policy. Bounds in percent never clip, bounds that leave out 1 clip everything, and a
ratio of whole sequences, the mean of its log-ratios, moves so little that the range of tokens never
holds it: GSPO (2507.18071) publishes 3e-4 and 4e-4, where PPO has 0.2 (AstrAI #50, TRL #3834 and
#4732, SkyRL #133).

    clip(ratio, 1 - 20, 1 + 20)                      # fires: percent
    clip(ratio, -0.2, 0.2)                           # fires: 1 is outside
    loss = rl.gspo(clip_low = 0.2, clip_high = 0.2)  # fires: of a sequence
    clip(ratio, 1 - 0.2, 1 + 0.28)                   # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
WIDEST, WIDEST_OF_SEQUENCE, LOWEST = 20.0, 0.05, 0.1


def check(view: View) -> Findings:
    for loss in view.losses:
        if loss.step is None and loss.function.module:
            continue
        for node, low, high, what in loss.once(ranges):
            yield finding(
                f"the ratio is clipped to [{low:g}, {high:g}]: {what}",
                loss.spot(node),
                help="3e-4 and 4e-4 are published for ratios of sequences"
                if "sequence" in what
                else "`clip(ratio, 1 - 0.2, 1 + 0.28)`: distances from 1, not percent",
            )


def ranges(loss: LossView) -> tuple[tuple[int, float, float, str], ...]:
    """Clips of a ratio, their bounds, and what is wrong with them."""
    values, found = loss.tree.values, []
    if loss.is_pairs or not loss.fields("sampler"):
        return ()
    for node in sorted(loss.objective):
        value = values[node]
        bounds = [values[arg].attr for arg in value.args[1:]]
        if value.op != "clamp" or not all(isinstance(b, int | float) for b in bounds):
            continue
        low, high = float(bounds[0] or 0.0), float(bounds[1] or 0.0)
        at = [loss.point(ratio=ratio)(value.args[0]) for ratio in (1.0, 1.5)]
        if any(abs(x.value - r) > 1e-9 for x, r in zip(at, (1.0, 1.5), strict=True)):
            continue  # a logarithm, or something else
        what = ""
        if not low <= 1.0 <= high:
            what = "on policy it is 1, which lies outside"
        elif low < 0.0 or high > WIDEST:
            what = "it is never outside"
        elif node in loss.live and value.type.diff and low < LOWEST and high <= 2.0:
            what = "it is hardly ever below, and nothing bounds how far bad tokens go down"
        elif value.type.diff and value.type.tokens is None and high - 1.0 > WIDEST_OF_SEQUENCE:
            what = "that of a sequence hardly ever leaves it"
        if what:
            found.append((node, low, high, what))
    return tuple(found)
