"""The model card of an export: README.md, with the header that the Hugging Face hub reads.

    RUN, step --write_card--> FOLDER/README.md: base, data, rewards, loss, evals, settings, versions

It says what the run folder knows. No licence is stated: those of the base model and of the data are
for the publisher to look up.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.runs import proofs
from forgedsl.runs.data import RunData, load_run
from forgedsl.runs.page import model_text, settings, source_text
from forgedsl.runs.text import number
from forgedsl.runs.verdict import edges, evals, points, verdict
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

NAME = "README.md"
TEMPLATE = "templates/card.md.j2"
OF_THE_HOST = ("speed", "start-up", "overlap", "proofs")
"""findings that say nothing about the weights, or have a section of their own"""


def write_card(run_dir: Path, step: int | None, folder: Path, *, adapter: bool = False) -> Path:
    """Write the card of the weights of a step, or of the last, into the folder of the export."""
    path = folder / NAME
    path.write_text(card(load_run(run_dir), step, adapter=adapter), encoding="utf-8", newline="\n")
    return path


def card(data: RunData, step: int | None, *, adapter: bool = False) -> str:
    """Return the card as Markdown; with `adapter`, that of an adapter without its base."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"quoted": json.dumps, "cell": cell, "number": number}
    job = data.job
    model = job.models[job.services[job.trained_service].model]
    last = int(data.rows[-1]["step"]) if data.rows else step or 0
    step = last if step is None else step
    used = list(_datasets(job))
    found = [finding for finding in verdict(data) if finding.label not in OF_THE_HOST]
    versions = data.processes[0]["versions"] if data.processes else {}
    reward = edges(points(data, "reward_mean"))
    text = resources.files("forgedsl.runs").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        job=job,
        step=step,
        last=last,
        adapter=adapter,
        samples=any(Role.SAMPLES in node.roles for node in job.nodes),
        base=model_text(model, whole=True),
        base_id=model.source.id if model.source.kind == "hf" else "",
        base_hash=getattr(model.source, "sha256", ""),
        lora=getattr(job.services[job.trained_service], "lora", None),
        datasets=[_dataset(job, *each) for each in used],
        hub_datasets=list(dict.fromkeys(i for name, _ in used for i in _ids(job, name))),
        rewards=[(name, _reward(job, name)) for name in job.rewards],
        rubrics=[(name, _written(job, rubric.function)) for name, rubric in job.rubrics.items()],
        losses=[(name, mathematics(job, name)) for name in _losses(job)],
        evals=list(_evals(data, step)),
        reward=reward,
        verdict=[(f.label, f.text) for f in found],
        proofs=proofs.newest(data),
        settings=[row for row in settings(data) if _is_setting(job, row[0])],
        versions={"forgedsl": job.compiler} | versions,
    )  # fmt: skip


def cell(text: object) -> str:
    """Text for a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def mathematics(job: Job, name: str) -> str:
    """A loss as `forgec explain` prints it, without its gradient."""
    from forgedsl.losses.render_math import render
    from forgedsl.losses.text import read

    return render(read(job.losses[name].tree)).partition("\ngradient")[0].strip()


def _losses(job: Job) -> dict[str, None]:
    """The losses that the trained model is stepped with."""
    steps = [node for node in job.nodes if Role.UPDATES in node.roles]
    return {loss: None for node in steps for loss in (node.loss, *node.beside) if loss}


def _datasets(job: Job) -> Iterator[tuple[str, str]]:
    """Names of the datasets, and what each is used for."""
    drawn = (Role.PROMPTS, Role.SUPERVISED)
    trains = {n.target for n in job.nodes if any(role in n.roles for role in drawn)}
    measures = {each.dataset for each in job.evals.values()}
    for name in job.datasets:
        uses = [*["training"] * (name in trains), *["evaluation"] * (name in measures)]
        yield name, " and ".join(uses) or "training"


def _dataset(job: Job, name: str, use: str) -> tuple[str, str, str]:
    source = job.datasets[name].source
    known = getattr(source, "sha256", "")
    return (
        name,
        f"{source_text(source, whole=True)}{f', sha256 {known[:16]}' if known else ''}",
        use,
    )


def _ids(job: Job, name: str) -> Iterator[str]:
    """Names on the hub of what a dataset is made of."""
    source = job.datasets[name].source
    for part in source.sources if source.kind == "mixture" else (source,):
        if part.kind == "hf":
            yield part.id


def _reward(job: Job, name: str) -> str:
    reward = job.rewards[name]
    if reward.kind == "program":
        return _written(job, reward.function)
    given = ", ".join(f"{key} = {json.dumps(value)}" for key, value in reward.args.items())
    where = f" of {Path(reward.path).name}" if reward.path else ""
    return f"{reward.kind}: {reward.function}({given}){where}"


def _written(job: Job, function: str) -> str:
    """The Python of a function of the job's program, such as `0.9 * correct + 0.1 * short`."""
    for node in ast.parse(job.program).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            body = [part for part in node.body if not isinstance(part, ast.Expr)]
            text = "; ".join(ast.unparse(part).removeprefix("return ") for part in body)
            return re.sub(r"\bscores\['([^']+)'\]", r"\1", text)  # the names of the rewards
    return function


def _evals(data: RunData, step: int) -> Iterator[tuple[str, str, str, int, float, int, float]]:
    """Name, data, what measures it, first step and value, and the last at or before the exported
    step."""
    for name, pts in evals(data).items():
        before = [(int(at), value) for at, value in pts if at <= step]
        if before:
            found = data.job.evals[name]
            on = source_text(data.job.datasets[found.dataset].source, whole=True)
            yield (name, on, found.score or f"loss {found.loss}", *before[0], *before[-1])


def _is_setting(job: Job, path: str) -> bool:
    """True unless the card says it elsewhere: models, datasets and evals."""
    return path not in job.models and path not in job.datasets and path not in job.evals
