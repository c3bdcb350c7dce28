"""Train steps of a run again under another job, from the weights that the run had before them.

    recorded step --the other rewards, filters, advantages--> batch --trainer--> metrics of the step

The trainer starts from the checkpoint before the first step, or from the model's source. The
completions are those of the run. From the second step on, the weights differ from those of the run,
so the completions are further off-policy than in the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from forgedsl.errors import LaunchError, RunError
from forgedsl.lower import job as spec
from forgedsl.runs.data import jsonl
from forgedsl.runs.retrained import Retrained
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.data_types import Sample, StepResult
from forgedsl_runtime.proofs.failures import failure
from forgedsl_runtime.recorded.files import steps_in
from forgedsl_runtime.replay import Device, starts, trainer_before, trainer_only
from forgedsl_runtime.step_metrics import finite, step_record
from forgedsl_runtime.whatif.rescore import Rescorer

OF_MODEL = ("arch", "dtype")
OF_SERVICE = ("lora", "value_head", "dtype")


def startable(run_dir: Path, files: Mapping[int, Path], *, chosen: bool) -> dict[int, Path]:
    """Return the files of consecutive steps that can be trained from a checkpoint. If the user has
    `chosen` the steps, return all of `files`. Otherwise begin at the last step that has a
    checkpoint of the step before it.

    Raises:
        LaunchError: there is no checkpoint from before the first step, or a step between the
            first and the last is not recorded.
    """
    steps = sorted(files)
    if not chosen:
        begins = [step for step in steps if starts(run_dir, step)]
        steps = steps[steps.index(begins[-1]) :] if begins else steps
    if not starts(run_dir, steps[0]):
        there = sorted(int(path.parent.name[5:]) for path in _checkpoints(run_dir))
        begins = [step for step in sorted(steps_in(run_dir)) if starts(run_dir, step)]
        can = (
            f"--steps can begin at {', '.join(map(str, begins))}"
            if begins
            else "no recorded step has a checkpoint of the step before it"
        )
        raise LaunchError(
            f"step {steps[0]} starts from a checkpoint of step {steps[0] - 1}, which {run_dir} "
            f"does not have; it has checkpoints of {', '.join(map(str, there)) or 'no step'}, so "
            f"{can}. `checkpoint.every` and `checkpoint.keep` decide which are kept, "
            "`logging.record.steps` which steps are recorded"
        )
    if missing := [step for step in range(steps[0], steps[-1]) if step not in files]:
        raise LaunchError(f"step {missing[0]} of {run_dir} is not recorded; choose others: --steps")
    return {step: files[step] for step in steps}


def _checkpoints(run_dir: Path) -> Iterator[Path]:
    yield from (run_dir / "checkpoints").glob("step-*/controller.json")


def trained_node(run: spec.Job, job: spec.Job) -> spec.Node:
    """Return the step node of the other job, after a check that its trainer can load the
    checkpoints of the run.

    Raises:
        RunError: the trainer cannot load them, or the job has several step nodes.
    """
    node, *others = analyse(job).steps
    if others:
        names = ", ".join(each.target for each in (node, *others))
        raise RunError(f"--train works for flows with one trained service; this one trains {names}",
                       origin=others[0].origin)  # fmt: skip
    old, new = run.services.get(node.target), job.services[node.target]
    if not isinstance(old, spec.Trainer) or not old.trained or not isinstance(new, spec.Trainer):
        raise RunError(f"the run trains no service `{node.target}`", origin=node.origin)
    models = run.models[old.model], job.models[new.model]
    different = [f"its model's {name}" for name in OF_MODEL if not _equal(*models, name)]
    different += ["its model"] * (_source(models[0]) != _source(models[1]))
    different += [f"`{name}`" for name in OF_SERVICE if not _equal(old, new, name)]
    optimizers = old.optimizer, new.optimizer
    different += [f"`optimizer.{n}`" for n in ("kind", "precision") if not _equal(*optimizers, n)]
    if different:
        text = f"the run's checkpoint does not fit `{node.target}`: {different[0]} differs"
        raise RunError(text, origin=job.origins.get(node.target, ""),
                       remedy="leave it as in the run")  # fmt: skip
    if new.router_replay:
        raise RunError(
            "the experts that tokens chose are not recorded", origin=node.origin,
            remedy=f"set {node.target}.router_replay=false for the what-if",
        )  # fmt: skip
    return node


def _equal(old: object, new: object, name: str) -> bool:
    return bool(getattr(old, name) == getattr(new, name))


def _source(model: spec.Model) -> dict[str, object]:
    """Return what the weights come from, without the paths of local files."""
    parts = {"source": model.source, "adapter": model.adapter}
    return {key: part and part.model_dump(exclude={"path"}) for key, part in parts.items()}


def train(
    run_dir: Path, run: spec.Job, job: spec.Job, folder: Path, files: Mapping[int, Path], *,
    out: Path, procs: int, device: Device, most_gap: float | None = None,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Retrained]:  # fmt: skip
    """Train the steps under `job`, whose files are in `folder`, on `procs` ranks. Logs go to `out`.
    With `most_gap`, training stops after a step in which the mean difference between the log-probs
    of the sampler and the trainer is larger.

    Raises:
        RunError: the job needs what is not recorded, or the trainer failed.
        LaunchError: a reward or a model cannot be loaded.
    """
    node = trained_node(run, job)
    # The model files are in the run folder, at the paths that the job of the run gives.
    placed = job.model_copy(update={"models": {**job.models, **run.models}})
    alone = trainer_only(placed, node.target, procs, device)
    rows = {row["step"]: row for row in jsonl(run_dir / "metrics.jsonl", [])}
    first = next(iter(files))

    async def main() -> list[Retrained]:
        found: list[Retrained] = []
        async with trainer_before(first, alone, run_dir.resolve(), out.resolve()) as client:
            again = Rescorer(run, job, folder, {node.target: client})
            for number, path in files.items():
                made = (await again.batches(number, path)).get(node.name)
                if made is None or not made.batch.samples:
                    found.append(Retrained(step=number, recorded=rows.get(number, {}), metrics={}))
                    tell(len(found))
                    continue
                assert node.loss is not None
                result = await client.step(made.batch, node.loss)
                found.append(_retrained(number, rows.get(number, {}), result, made.batch.samples))
                tell(len(found))
                if most_gap is not None and (found[-1].gap or 0.0) > most_gap:
                    break
        return found

    return asyncio.run(main())


def _retrained(
    number: int, recorded: Mapping[str, object], result: StepResult, samples: Sequence[Sample]
) -> Retrained:
    if failed := next(filter(None, map(failure, result.proofs)), ""):
        raise RunError(failed)
    metrics = finite(step_record(result))
    return Retrained(step=number, recorded=recorded, metrics=metrics, samples=len(samples))
