"""Finds the best placements of a program besides that of its file, for `forgec plan`.

Program + Graph + Host -> search -> planned like any program -> Alternatives -> text | JSON
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.hir.evaluate import show
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Program
from forgedsl.plan.calibration import calibration_text
from forgedsl.plan.cost import by_service, time_text
from forgedsl.plan.host import host_text
from forgedsl.plan.plan import TRIED, Plan, plan, request_of
from forgedsl.plan.schedule import plan_schedule
from forgedsl.plan.search import CHECKPOINT, CLAIM, COLOCATE, ROWS, SIZES, full_space, search
from forgedsl.plan.text import scoring_text, table
from forgedsl.records import dataclass
from forgedsl.services.registry import kind_of
from forgedsl.settings import Auto
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.memory import GIB

BEST = 5
ABOUT = (
    "estimated step times, for maximum lengths; of equal times, only the one with the fewest GPUs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """Alternative placements, the best first, each with the overrides that give it (none for the
    file's own placement). `present` is the file's own plan, if it has one. `unknown` are services
    whose models have unknown sizes, so that placements cannot be compared."""

    host: Host
    found: tuple[tuple[Plan, Mapping[str, str]], ...] = ()
    present: Plan | None
    unknown: tuple[str, ...] = ()


def alternatives(
    program: Program,
    graph: Graph,
    present: Plan | None,
    *,
    host: Host | None,
    base_dir: Path | None,
) -> Alternatives:
    """Return the best placements on a host, regardless of the sizes and sharing in the file."""
    base = request_of(program, graph, (), Reporter(), host, base_dir)
    schedule = plan_schedule(program, graph, Reporter())
    unknown = tuple(name for name, dims in base.dims.items() if dims is None)
    if schedule is None or unknown:
        return Alternatives(host=base.host, present=present, unknown=unknown)
    found: list[tuple[Plan, Mapping[str, str]]] = []
    candidates = search(base, graph, schedule, full_space(base, graph), distinct=True)
    for candidate, _ in zip(candidates, range(TRIED), strict=False):
        made = plan(candidate.program, graph, reporter=Reporter(), host=host, base_dir=base_dir)
        if made is not None:
            same = present is not None and _shape(made) == _shape(present)
            found.append((made, {} if same else dict(_settings(program, made, present))))
        if len(found) == BEST:
            break
    return Alternatives(host=base.host, found=tuple(found), present=present)


def _shape(plan: Plan) -> object:
    """Return a key that is equal for plans with the same placement."""
    meshes = [(m.service, m.hosts, m.procs, m.replicas, m.ep, dict(m.degrees)) for m in plan.meshes]
    shared = sorted(plan.colocate) if len(plan.colocate) > 1 else []
    return meshes, shared, dict(plan.rows), _checkpointing(plan)


def _checkpointing(plan: Plan) -> str:
    return str(plan.request.program.services[plan.request.trainer].settings[CHECKPOINT].value)


def _settings(program: Program, made: Plan, present: Plan | None) -> Iterator[tuple[str, str]]:
    """Yield the settings to write, with their values. If a setting changes for one service, it is
    yielded for all services that set it, because their values may refer to each other.
    """
    new, old = ({n: services[n].settings for n in made.request.contexts}
                for services in (made.request.program.services, program.services))  # fmt: skip
    for name, written in old.items():
        spread = kind_of(program.services[name].ctor).spread
        for key in (key for key in (*SIZES, ROWS, CHECKPOINT, CLAIM) if key in written):
            both = [(new[n][key].value, old[n][key].value) for n in old if key in old[n]]
            default, value = written[key].origin.layer == "default", new[name][key].value
            follows = key == "procs" and default and not spread  # `procs` follows from the degrees
            said = not default or written[key].value != value
            if any(one != other for one, other in both) and said and not follows:
                auto = isinstance(value, Auto)
                yield f"{name}.{key}", "auto" if auto else show(value).strip('"')
    if present is None or set(made.colocate) != set(present.colocate):
        yield COLOCATE, f"[{', '.join(made.colocate)}]"


# ---- output


def as_json(found: Alternatives) -> list[dict[str, Any]]:
    """Return the alternatives as JSON data, the best first."""
    return [
        {"step_seconds": plan.cost.step_seconds, "gpus": _gpus(plan), "colocate": [*plan.colocate],
         "busy": {name: plan.cost.busy(name) for name in by_service(plan.cost.stages)},
         "memory": [{"name": s.name, "count": s.count, "bytes": s.bytes, "capacity": s.capacity}
                    for s in plan.memory.stores if s.kind == "gpu"],
         "present": not settings, "settings": settings}
        for plan, settings in found.found
    ]  # fmt: skip


def _gpus(plan: Plan) -> int:
    return len({(p.host, gpu) for mesh in plan.meshes for p in mesh.places for gpu in p.gpus})


def render(found: Alternatives) -> str:
    """Return the page of alternatives, at most 100 columns wide, ending in a newline."""
    if found.unknown:
        names = ", ".join(f"`{name}`" for name in found.unknown)
        return f"the size of the model of {names} is unknown: set its `arch`\n"
    if not found.found:
        return f"no placement fits {host_text(found.host)}\n"
    first = found.found[0][0]
    devices = (stage.device for stage in first.cost.stages)
    program = first.request.program
    known = calibration_text(program, found.host, devices)
    scores = map(scoring_text, first.cost.scorings)
    head = (f"the best placements on {host_text(found.host)}", ABOUT, known, *scores)
    blocks = ["\n".join(filter(None, head))]
    for number, (made, settings) in enumerate(found.found, 1):
        mark = "" if settings else "   <- as in the file"
        blocks.append("\n".join([*_lines(f"{number}.", made, mark), *_written(settings)]))
    if found.present is not None and all(settings for _, settings in found.found):
        ratio = found.present.cost.step_seconds / first.cost.step_seconds
        mark = f"   <- as in the file, {ratio:.2f} times the best"
        blocks.append("\n".join(_lines("file", found.present, mark)))
    return "\n\n".join(blocks) + "\n"


def _lines(name: str, plan: Plan, mark: str) -> Iterator[str]:
    """Return a line for the alternative, then one per service."""
    count = f"{_gpus(plan)} GPU{'' if _gpus(plan) == 1 else 's'}"
    shared = f", {' and '.join(plan.colocate)} share GPUs" if len(plan.colocate) > 1 else ""
    yield f"{name:<5}{time_text(plan.cost.step_seconds)} a step on {count}{shared}{mark}"
    rows = []
    for mesh in plan.meshes:
        degrees = ", ".join(f"{key} {d}" for key, d in mesh.split.items())
        store = next((s for s in plan.memory.stores if mesh.service in s.services), None)
        full = f"{store.bytes / GIB:.1f} of {store.capacity / GIB:.0f} GiB" if store else ""
        busy = f"{100 * plan.cost.busy(mesh.service):.0f} % busy"
        batch = ""
        if mesh.service == plan.request.trainer:
            batch = f"rows {plan.rows[mesh.service].rows}, {_checkpointing(plan)}"
        size = mesh.text.replace(" x 1 gpu", "")
        rows.append((mesh.service, size, degrees, batch.removesuffix(", none"), busy, full))
    yield from (f"     {line}" for line in table(rows, right=(4, 5)))


def _written(settings: Mapping[str, str]) -> Iterator[str]:
    """Return the lines `write ...` with the overrides; none for the file's own placement."""
    line = "     write"
    for path, value in settings.items():
        part = f"'{path}={value}'" if path == COLOCATE else f"{path}={value}"
        if len(line) + len(part) + 1 > 96:
            yield line
            line = "          "
        line += f" {part}"
    if settings:
        yield line
