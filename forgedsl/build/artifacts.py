"""Outputs of `forgec build --emit`: one row per name, with the files it makes.

State (all passes have run) --EMITS--> {path: text}

tokens ast hir graph plan   the text forms of the passes; plan also as plan.json
job python torch triton     what runs: the document, the program, its modules
math                        every loss with its gradient as mathematics
sbatch k8s                  the same plan for schedulers
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.launchers.base import Allocation, Manifest
from forgedsl.launchers.registry import LAUNCHERS, launcher
from forgedsl.lower.hosts import num_hosts
from forgedsl.passes import PASSES
from forgedsl.passes.state import State
from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

Files = dict[str, str]
MANIFESTS = [(each.name, each.manifest) for each in LAUNCHERS if each.manifest is not None]
DEFAULT = ("graph", "plan", "job", "python", "math")
READS_INPUTS = frozenset({"job", "plan", "python", *(m.emit for _, m in MANIFESTS)})
"""outputs that need the job's input files in the same folder"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """An output. `on_demand` names a pass that must run for it."""

    name: str
    what: str
    files: Callable[[State], Files]
    on_demand: str | None = None


def build(state: State, emits: Iterable[str]) -> Files:
    """Return the texts of all files, by path."""
    wanted = set(emits)
    found: Files = {}
    for emit in EMITS:
        if emit.name in wanted:
            found |= emit.files(state)
    return found


def inputs(state: State, emits: Iterable[str]) -> Mapping[str, Path]:
    """Return the files that a job reads, by their path relative to it."""
    assert state.job is not None
    wanted = READS_INPUTS.intersection(emits)
    return {name: source for source, name in state.job.files} if wanted else {}


# ---- outputs


def _text_of(name: str, file: str) -> Callable[[State], Files]:
    step = next(step for step in PASSES if step.name == name)
    return lambda state: {file: step.text(state)}


def _graph(state: State) -> Files:
    from forgedsl.drawing.drawing import Drawing

    assert state.hir is not None
    assert state.graph is not None
    assert state.plan is not None
    drawing = Drawing(
        program=state.hir, graph=state.graph, plan=state.plan, sources=state.loader.sources
    )
    return _text_of("graph", "graph.ir")(state) | {"graph.svg": drawing.render("dataflow", "svg")}


def _plan(state: State) -> Files:
    from forgedsl.lower.document import document_text, plan_document

    assert state.job is not None
    return _text_of("plan", "plan.ir")(state) | {
        "plan.json": document_text(plan_document(state.job))
    }


def _python(state: State) -> Files:
    from forgedsl.build.python import modules

    assert state.job is not None
    return modules(state.job.job)


def _loss_files(ending: str) -> Callable[[State], Files]:
    def files(state: State) -> Files:
        from forgedsl.build.python import loss_modules

        assert state.job is not None
        found: Files = {}
        for name in state.job.job.losses:
            found |= loss_modules(state.job.job, name)
        stems = [path.removesuffix(".tree") for path in found if path.endswith(".tree")]
        return {f"{stem}{ending}": found[f"{stem}{ending}"] for stem in stems}

    return files


def _math(state: State) -> Files:
    from forgedsl.build.python import loss_stem
    from forgedsl.losses.render_math import render
    from forgedsl.losses.text import read

    assert state.job is not None
    losses = state.job.job.losses
    return {
        f"{loss_stem(name)}.math": f"loss {name}\n\n{render(read(loss.tree))}"
        for name, loss in losses.items()
    }


def _manifest(name: str, manifest: Manifest) -> Callable[[State], Files]:
    """Return a function that writes the manifest. If the program has another launcher, the
    manifest has the plan's resources and default settings of its launcher."""

    def files(state: State) -> Files:
        assert state.job is not None
        chosen = state.job.job.launcher
        args = chosen.args if chosen.kind == name else {}
        services = [f"{m.service}: {m.text} on {m.device}" for m in state.job.plan.meshes]
        other = other_launcher_note(state.job.job, name)
        text = manifest.text(allocation(state.job.job, services, other=other), args)
        return {manifest.file: text} | _text_of("job", "job.json")(state)

    return files


def other_launcher_note(job: Job, name: str) -> str:
    """Return a note on a manifest of another launcher than the program's, or nothing."""
    if (kind := job.launcher.kind) == name:
        return ""
    settings = ", ".join(param.name for param in launcher(name).signature.params)
    note = (
        f"The program has `launcher = {kind}`, so the settings of `{name}` ({settings}) have "
        "default values"
    )
    if num_hosts(job) > 1 and not launcher(kind).allocation:
        note += (
            f"; and `{kind}` starts its {num_hosts(job)} hosts itself instead of using the "
            "requested ones"
        )
    return f"{note}; to choose them, write `launcher = {name}(...)`."


def allocation(job: Job, services: Sequence[str] = (), **more: str) -> Allocation:
    """Return the allocation: hosts and GPUs of the plan, and resources of a host from `cluster`."""
    meshes = [service.mesh for service in job.services.values()]
    places = [place for mesh in meshes for place in mesh.places]
    return Allocation(
        name=re.sub(r"[^A-Za-z0-9_.-]+", "-", job.name).strip("-") or "forge",
        title=" ".join(job.summary[0].split()),
        compiler=job.compiler,
        services=tuple(services),
        hosts=num_hosts(job),
        gpus=max((1 + gpu for place in places for gpu in place.gpus), default=0),
        cpus=job.launcher.cpus,
        memory=job.launcher.memory,
        grace=job.checkpoint.grace_s,
        **more,
    )


EMITS: tuple[Emit, ...] = (
    Emit(name="tokens", what="tokens of the text", files=_text_of("tokens", "tokens.txt"),
         on_demand="tokens"),
    Emit(name="ast", what="the syntax tree", files=_text_of("ast", "ast.ir")),
    Emit(name="hir", what="names and values resolved", files=_text_of("hir", "hir.ir")),
    Emit(name="graph", what="nodes and edges, and a drawing", files=_graph),
    Emit(name="plan", what="placement, memory, queues; `forgec run` takes plan.json", files=_plan),
    Emit(name="job", what="job.json, which `forgec run` takes", files=_text_of("job", "job.json")),
    Emit(name="python", what="main.py and its modules, for `python main.py`", files=_python),
    Emit(name="triton", what="losses as Triton kernels", files=_loss_files("_kernels.py")),
    Emit(name="torch", what="losses as torch modules", files=_loss_files(".py")),
    Emit(name="math", what="losses and gradients as mathematics", files=_math),
    *(Emit(name=m.emit, what=m.what, files=_manifest(name, m)) for name, m in MANIFESTS),
)  # fmt: skip
