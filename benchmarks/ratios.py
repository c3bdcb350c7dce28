"""The mean ratio of a first step under every loss that has one, of one recorded batch.

    grpo_math.forge, small model --forgec run, one step--> recorded batch
    recorded batch, each loss --the trainer's forward pass, no update--> table, one line of JSON

    python benchmarks/ratios.py        on the GPU where there is one

Sampler and trainer have the same weights, so log-probs that agree give a ratio of 1. `tis_ppo` and
`icepop` report the weight between the trainer before the step and the sampler instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from training import trainer

from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Sample

PIPELINES = Path(__file__).parents[1] / "pipelines"
LOSSES = (
    "ppo", "grpo", "dr_grpo(horizon = 16.0)", "dapo", "cispo", "sapo", "gspo", "gspo_token",
    "gmpo", "luspo", "tis_ppo", "icepop",
)  # fmt: skip
REPLAY, STEP = "replay(rollout, ref = ref_lp, adv = adv)", "trainer.step(batch, loss = grpo)"
FIELDS = {"grpo": "ref = ref_lp, "} | dict.fromkeys(
    ("tis_ppo", "icepop"), "proximal = trainer.logprobs(rollout), "
)


def forgec(*words: str | Path) -> None:
    profile = ["--profile", "gpu_tiny"] if torch.cuda.is_available() else []
    command = [sys.executable, "-m", "forgedsl.cli.main", *map(str, words), *profile]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compiled(loss: str, folder: Path) -> spec.Job:
    """grpo_math's job with another loss of std/rl."""
    text = (PIPELINES / "grpo_math.forge").read_text()
    assert text.count(REPLAY) == text.count(STEP) == 1
    text = text.replace(STEP, f"trainer.step(batch, loss = rl.{loss})")
    text = text.replace(REPLAY, f"replay(rollout, {FIELDS.get(loss, '')}adv = adv)")
    file, built = folder / f"{loss}.forge", folder / loss
    file.write_text(text)
    forgec("build", file, "-o", built)
    return spec.Job.model_validate_json((built / "job.json").read_text())


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("models", "data"):
            (folder / inner).symlink_to(PIPELINES / inner)
        run = ("--set", "schedule.steps=1", "--record-batches", "1", "--run-dir", folder / "run")
        forgec("run", PIPELINES / "grpo_math.forge", *run)
        recorded = json.loads((folder / "run/batches/step-1.json").read_text())["batch"]
        samples = [Sample(**sample) for sample in recorded["samples"]]
        with ThreadPoolExecutor(4) as pool:
            jobs = list(pool.map(partial(compiled, folder=folder), LOSSES))
        (folder / "b").symlink_to(folder / LOSSES[0])  # its paths are those of all
        losses = {name: loss for job in jobs for name, loss in job.losses.items()}
        actor = trainer(jobs[0].model_copy(update={"losses": losses}), folder)
        for sample, values in zip(samples, actor._logprobs(samples), strict=True):
            sample.token_fields["proximal"] = values
        found = {}
        for loss in losses:
            reports = actor._evaluate(samples, loss)
            found[loss] = reports.get("ratio", reports.get("weight"))
            print(f"  {loss:20} {found[loss]:.6f}", file=sys.stderr)
        print(json.dumps({"samples": len(samples), **found}), flush=True)
        actor._close()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    main()
