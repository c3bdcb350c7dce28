"""R510 no-gpu: a reward declares that it uses a GPU.

The processes of rewards have no GPU: the plan gives all GPUs to trainers and generators.

    reward judge(r: Rollout) -> f32 = model.score { effects = [gpu] }                    # fires
    reward judge(r: Rollout) -> f32 = model.score { effects = [net], timeout = 10s }     # silent

Run a small model on the CPU, or serve a large one separately and send requests to it
(`effects = [net]`).
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
