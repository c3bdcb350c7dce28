"""R510 no-gpu: a reward that wants a GPU.

The processes of rewards see no GPU: the plan gives them to trainers and generators.

    reward judge(r: Rollout) -> f32 = model.score { effects = [gpu] }                    # fires
    reward judge(r: Rollout) -> f32 = model.score { effects = [net], timeout = 10s }     # silent

Run a small model on the CPU, or serve a large one beside the run and ask it (`effects = [net]`).
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    for reward in view.program.rewards.values():
        if "gpu" in reward.settings["effects"].value:
            yield finding(
                f"reward `{reward.name}` wants a GPU, and its processes get none",
                place_of(reward, view, "effects"),
                help="serve the model beside the run and ask it: `effects = [net]`",
            )
