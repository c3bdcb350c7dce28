"""Program -> sealed Job, with the graph and plan it was made from.

    Program -> graph -> plan -> Job (hermetic, hashed) + files to copy beside it

The same program, host description and files give the same bytes. `lower` reports diagnostics and
returns None when there is no legal job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from forgedsl import extensions
from forgedsl.diagnostics import Reporter
from forgedsl.drawing.render_text import render_text
from forgedsl.errors import SourceError
from forgedsl.graph.dataflow import build
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Constructor, Program
from forgedsl.lower import flow, functions, sources
from forgedsl.lower import job as spec
from forgedsl.lower.paths import InputFiles, digest
from forgedsl.lower.services import lower_services
from forgedsl.lower.summary import summary_lines
from forgedsl.plan.grace import grace
from forgedsl.plan.meshes import pools_host
from forgedsl.plan.plan import Plan, plan
from forgedsl.records import dataclass
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile, Span
from forgedsl.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A job with its graph and plan. `files` lists the files to copy: (source, path relative to
    job.json)."""

    job: spec.Job
    files: tuple[tuple[Path, str], ...]
    graph: Graph
    plan: Plan


def lower(
    program: Program,
    *,
    reporter: Reporter,
    sources: Mapping[str, SourceFile],
    base_dir: Path,
    host: Host | None = None,
) -> Lowered | None:
    """Lower a resolved program; `base_dir` is the folder of its .forge file."""
    graph = build(program, reporter=reporter)
    if graph is None:
        return None
    planned = plan(program, graph, reporter=reporter, host=host, base_dir=base_dir)
    if planned is None:
        return None
    return lower_planned(
        program, graph, planned, reporter=reporter, sources=sources, base_dir=base_dir
    )


def lower_planned(
    program: Program,
    graph: Graph,
    planned: Plan,
    *,
    reporter: Reporter,
    sources: Mapping[str, SourceFile],
    base_dir: Path,
    allow: Collection[str] = (),
) -> Lowered | None:
    """Lower a planned program. Errors whose codes are in `allow` do not stop the lowering."""
    before = frozenset(reporter)
    program = planned.request.program  # the plan's program has values where the file says `auto`
    files = InputFiles(base_dir, reporter)
    job = _job(program, graph, planned, files, reporter, sources)
    files.report_missing()
    found = frozenset(reporter) - before
    if any(d.severity == "error" and d.code not in allow for d in found):
        return None
    added = extensions.files()
    copies = (*files.copies, *((path, name) for name, path in added.items()))
    return Lowered(job=job.sealed(), files=copies, graph=graph, plan=planned)


def _job(
    program: Program,
    graph: Graph,
    planned: Plan,
    files: InputFiles,
    reporter: Reporter,
    texts: Mapping[str, SourceFile],
) -> spec.Job:
    place = placer(texts)
    return spec.Job(
        compiler=VERSION, name=program.name, seed=sources.run_seed(program),
        profile=program.profile, summary=summary_lines(program, graph, planned),
        params={name: plain(value.value) for name, value in program.params.items()},
        models=sources.lower_models(program, graph, planned, files),
        datasets=sources.lower_datasets(program, graph, planned, files),
        services=lower_services(program, graph, planned),
        rewards=functions.lower_rewards(program, graph, files),
        rubrics=functions.lower_rubrics(program, graph),
        environments=functions.lower_environments(program, graph, files),
        **flow.lower_declared(program, graph),
        losses=functions.lower_losses(program, graph, reporter, texts),
        program=_program_text(program, reporter, texts),
        nodes=flow.lower_nodes(program, graph, planned, place),
        schedule=flow.lower_schedule(planned), evals=flow.lower_evals(program, graph, planned),
        checkpoint=_checkpoint(program, graph, planned), logging=_logging(program),
        proofs=_proofs(program),
        launcher=_launcher(program, planned),
        colocate=(planned.colocate,) if len(planned.colocate) > 1 else (),
        chosen=dict(planned.chosen), origins=_origins(program, graph, place),
        topology=render_text(program, graph, planned, host=False),
        extensions={name: digest(path) for name, path in extensions.files().items()},
    )  # fmt: skip


def _program_text(program: Program, reporter: Reporter, texts: Mapping[str, SourceFile]) -> str:
    from forgedsl.emit.python import emit_program

    try:
        return emit_program(program, texts)
    except SourceError as error:
        for diagnostic in error.diagnostics:
            reporter.report(diagnostic)
        return ""


def placer(texts: Mapping[str, SourceFile]) -> Callable[[Span], str]:
    """Return a function that formats spans: "grpo_math.forge:63:3"; "" if the span is in no
    file."""

    def place(span: Span) -> str:
        source = texts.get(span.file)
        if source is None:
            return ""
        line, column = source.position(span.start)
        return f"{functions.file_name(source.name)}:{line}:{column}"

    return place


def plain(value: Any) -> Any:
    """Convert a folded value to JSON data; durations and sizes become plain numbers."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def _origins(program: Program, graph: Graph, place: Callable[[Span], str]) -> dict[str, str]:
    """Return the source place of each declaration and node of the job."""
    found = {name: place(span) for name, span in program.spans.items()}
    found |= {node.name: place(node.span) for node in graph.nodes if node.name not in found}
    return {name: text for name, text in sorted(found.items()) if text}


def _checkpoint(program: Program, graph: Graph, planned: Plan) -> spec.Checkpoint:
    settings = program.singletons["checkpoint"].settings
    export, every = settings["export"].value, settings["every"].value
    return spec.Checkpoint(
        every=every if isinstance(every, int) else None,
        every_s=every if isinstance(every, float) else None,
        keep=settings["keep"].value,
        grace_s=grace(graph, planned),
        export=export.args["path"] if isinstance(export, Constructor) else None,
    )


TRACKERS: dict[str, tuple[str, type[spec.Spec]]] = {
    "wandb": ("project", spec.Wandb),
    "mlflow": ("experiment", spec.Mlflow),
    "trackio": ("project", spec.Trackio),
}
"""blocks of `logging` for tracking services: the setting that turns each on, and its class"""


def _logging(program: Program) -> spec.Logging:
    settings = {key: s.value for key, s in program.singletons["logging"].settings.items()}
    trackers: dict[str, Any] = {
        block: made.model_validate({n: settings[f"{block}.{n}"] for n in made.model_fields})
        for block, (switch, made) in TRACKERS.items()
        if settings[f"{block}.{switch}"] is not None
    }
    return spec.Logging(
        console=settings["console"],
        jsonl=settings["jsonl"],
        tensorboard=settings["tensorboard"],
        prometheus=settings["prometheus"],
        samples=settings["samples"],
        record=settings["record.steps"],
        record_bytes=settings["record.disk"],
        **trackers,
    )


def _proofs(program: Program) -> spec.Proofs:
    settings = program.singletons["proofs"].settings
    reasons = {name.removeprefix("off."): each.value for name, each in settings.items()}
    return spec.Proofs(off={name: why for name, why in reasons.items() if why is not None})


def _launcher(program: Program, planned: Plan) -> spec.Launcher:
    launcher = program.singletons["launcher"].settings["value"].value
    args = {key: plain(value) for key, value in launcher.args.items() if value is not None}
    request = planned.request
    pools = pools_host(planned.meshes, request.trainer, request.host.hosts)
    cluster = program.singletons["cluster"].settings
    declared = {
        key: int(cluster[key].value)
        for key in ("cpus", "memory")
        if cluster[key].origin.layer != "default"
    }
    return spec.Launcher(kind=launcher.name, args=args, pools=pools, **declared)
