"""L424 clip-range: the bounds of a clipped ratio are not those of a ratio near 1.

A ratio is 1 on policy. Bounds in percent never clip, and bounds that exclude 1 clip everything. The
ratio of a whole sequence (exponential of its mean log-ratio) changes so little that bounds meant
for tokens never clip it: GSPO (2507.18071) uses 3e-4 and 4e-4, where PPO uses 0.2 (AstrAI #50, TRL
#3834 and #4732, SkyRL #133). Write the bounds around 1, of the size that the ratio needs.

    clip(ratio, 1 - 20, 1 + 20)                      # fires: percent
    clip(ratio, -0.2, 0.2)                           # fires: 1 is outside
    loss = rl.gspo(clip_low = 0.2, clip_high = 0.2)  # fires: of a sequence
    clip(ratio, 0.8, 1.2 + 0.2 * num_steps)          # fires: no bound is left at the end of the run
    clip(ratio, 1 - 0.2, 1 + 0.28)                   # silent
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import turns_at, wrong_clip_bounds
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
WIDE = 5.0
"""an upper bound above those in use, of which 3 (dual clip) is the largest"""


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
        moved = _moved(loss)
        if moved is not None:
            node, update, low, high = moved
            end = loss.updates_of_run
            yield finding(
                f"after {update} of {end} updates the ratio is hardly clipped any more: the bounds "
                f"are [{low:g}, {high:g}] at the end"
                if low <= 1.0 <= high
                else f"after {update} of {end} updates the bounds of this clip leave out 1, the "
                f"ratio of an unchanged policy: they are [{low:g}, {high:g}] at the end",
                loss.spot(node),
                notes=("`num_steps` counts updates",),
                help="limit what changes: `0.08 * min(1.0, num_steps / 100)`",
            )


def _moved(loss: LossView) -> tuple[int, int, float, float] | None:
    """Return the clip of a ratio whose bounds become wrong during the run, the update after which
    they are, and the bounds at its end."""
    if "num_steps" not in loss.read or loss.is_pairs or not loss.fields("sampler"):
        return None
    for node in sorted(loss.objective):
        value = loss.tree.values[node]
        if value.op != "clamp":
            continue
        free, *ends = value.args
        at = [loss.point(ratio=ratio)(free).value for ratio in (1.0, 1.5)]
        if any(abs(x - r) > 1e-9 for x, r in zip(at, (1.0, 1.5), strict=True)):
            continue  # no ratio

        def bounds(update: int, ends: list[int] = ends) -> tuple[float, float]:
            point = loss.point(num_steps=float(update))
            return point(ends[0]).value, point(ends[1]).value

        def is_wrong(update: int) -> bool:
            low, high = bounds(update)
            return not low <= 1.0 <= high or high > WIDE

        update = turns_at(loss, is_wrong)
        if update is not None:
            return node, update, *bounds(loss.updates_of_run)
    return None
