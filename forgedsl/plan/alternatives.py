"""The best placements of a program beside the one that its file has, for `forgec plan`.

Program + Graph + Host -> search -> planned like any program -> Alternatives -> text | JSON
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.graph.ir import Graph
from forgedsl.hir.evaluate import show
from forgedsl.hir.ir import Program
from forgedsl.plan.cost import by_service, time_text
from forgedsl.plan.host import Host, host_text
from forgedsl.plan.memory import GIB
from forgedsl.plan.plan import TRIED, Plan, plan, request_of
from forgedsl.plan.schedule import plan_schedule
from forgedsl.plan.search import CHECKPOINT, CLAIM, COLOCATE, ROWS, SIZES, everything, search
from forgedsl.plan.text import table
from forgedsl.records import dataclass
from forgedsl.services.registry import kind_of
from forgedsl.settings import Auto

BEST = 5
ABOUT = (
    "steps as the plan estimates them, at most; the same time is listed once, with the fewest GPUs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """`settings` are what the file would have to say, as overrides say it: path -> value."""

    plan: Plan
    settings: Mapping[str, str]
    present: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """The best first. `present` is the file's own plan, if it has one; `unknown` are services of
    whose models nothing is known, so that nothing can be compared."""

    host: Host
    found: tuple[Alternative, ...]
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
    """The best placements on a host, whatever the file says of sizes and sharing."""
    base = request_of(program, graph, (), Reporter(), host, base_dir)
    schedule = plan_schedule(program, graph, Reporter())
    unknown = tuple(name for name, dims in base.dims.items() if dims is None)
    found: list[Alternative] = []
    if schedule is None or unknown:
        return Alternatives(host=base.host, found=(), present=present, unknown=unknown)
    candidates = search(base, graph, schedule, everything(base, graph), distinct=True)
    for candidate, _ in zip(candidates, range(TRIED), strict=False):
        made = plan(candidate.program, graph, reporter=Reporter(), host=host, base_dir=base_dir)
        if made is not None:
            same = present is not None and _shape(made) == _shape(present)
            settings = dict(_settings(program, made, present))
            found.append(Alternative(plan=made, settings={} if same else settings, present=same))
        if len(found) == BEST:
            break
    return Alternatives(host=base.host, found=tuple(found), present=present)


def _shape(plan: Plan) -> object:
    """What makes two plans the same placement."""
    meshes = [(m.service, m.hosts, m.procs, m.replicas, dict(m.degrees)) for m in plan.meshes]
    shared = sorted(plan.colocate) if len(plan.colocate) > 1 else []
    trainer = plan.request.program.services[plan.request.trainer]
    return meshes, shared, dict(plan.rows), trainer.settings[CHECKPOINT].value


def _settings(program: Program, made: Plan, present: Plan | None) -> Iterator[tuple[str, str]]:
    """What is to be written. A setting that changes for one service is said for all that have it
    written, for one may be written as that of another."""
    new, were = made.request.program.services, program.services
    keys = [
        key
        for key in (*SIZES, ROWS, CHECKPOINT, CLAIM)
        if any(_value(new[name], key) != _value(were[name], key) for name in new)
    ]
    for mesh in made.meshes:
        old = program.services[mesh.service].settings
        for key in keys:
            if key not in old or (key == "procs" and _follows(program, mesh.service)):
                continue
            value = new[mesh.service].settings[key].value
            if old[key].origin.layer != "default" or old[key].value != value:
                shown = "auto" if isinstance(value, Auto) else show(value).strip('"')
                yield f"{mesh.service}.{key}", shown
    was = present.colocate if present is not None else None
    if was is None or set(made.colocate) != set(was):
        yield COLOCATE, f"[{', '.join(made.colocate)}]"


def _value(decl: Any, key: str) -> Any:
    return decl.settings[key].value if key in decl.settings else None


def _follows(program: Program, service: str) -> bool:
    """Whether the processes of a service are what its degrees make."""
    decl = program.services[service]
    return not kind_of(decl.ctor).spread and decl.settings["procs"].origin.layer == "default"


# ---- for people and programs


def as_json(found: Alternatives) -> list[dict[str, Any]]:
    """The alternatives, the best first."""
    return [{**_figures(each.plan), "present": each.present, "settings": dict(each.settings)}
            for each in found.found]  # fmt: skip


def _figures(plan: Plan) -> dict[str, Any]:
    gpus = {(p.host, gpu) for mesh in plan.meshes for p in mesh.places for gpu in p.gpus}
    return {
        "step_seconds": plan.cost.step_seconds,
        "gpus": len(gpus),
        "colocate": list(plan.colocate),
        "busy": {name: plan.cost.busy(name) for name in by_service(plan.cost.stages)},
        "memory": [
            {"name": s.name, "count": s.count, "bytes": s.bytes, "capacity": s.capacity}
            for s in plan.memory.stores
            if s.kind == "gpu"
        ],
    }


def render(found: Alternatives) -> str:
    """The page, ending in a newline, at most 100 columns wide."""
    head = f"the best placements on {host_text(found.host)}"
    if found.unknown:
        names = ", ".join(f"`{name}`" for name in found.unknown)
        return f"nothing says how large the model of {names} is: give its `arch`\n"
    if not found.found:
        return f"no placement fits {host_text(found.host)}\n"
    blocks = [f"{head}\n{ABOUT}"]
    for number, each in enumerate(found.found, 1):
        mark = "   <- the file's" if each.present else ""
        blocks.append("\n".join([*_lines(f"{number}.", each.plan, mark), *_written(each)]))
    if found.present is not None and not any(each.present for each in found.found):
        ratio = found.present.cost.step_seconds / found.found[0].plan.cost.step_seconds
        mark = f"   <- the file's, {ratio:.2f} times the best"
        blocks.append("\n".join(_lines("file", found.present, mark)))
    return "\n\n".join(blocks) + "\n"


def _lines(name: str, plan: Plan, mark: str) -> Iterator[str]:
    """A line for the whole, then one for each service."""
    figures = _figures(plan)
    count = f"{figures['gpus']} GPU{'' if figures['gpus'] == 1 else 's'}"
    shared = f", {' and '.join(plan.colocate)} share theirs" if len(plan.colocate) > 1 else ""
    yield f"{name:<5}{time_text(plan.cost.step_seconds)} a step on {count}{shared}{mark}"
    rows = []
    for mesh in plan.meshes:
        degrees = ", ".join(f"{key} {d}" for key, d in mesh.degrees.items() if d > 1)
        store = next((s for s in plan.memory.stores if mesh.service in s.services), None)
        full = f"{store.bytes / GIB:.1f} of {store.capacity / GIB:.0f} GiB" if store else ""
        busy = f"{100 * plan.cost.busy(mesh.service):.0f} % busy"
        size = mesh.text.replace(" x 1 gpu", "")
        rows.append((mesh.service, size, degrees, _microbatch(plan, mesh.service), busy, full))
    yield from (f"     {line}" for line in table(rows, right=(4, 5)))


def _microbatch(plan: Plan, service: str) -> str:
    if service != plan.request.trainer:
        return ""
    mode = plan.request.program.services[service].settings[CHECKPOINT].value
    return f"rows {plan.rows[service].rows}" + ("" if mode == "none" else f", {mode}")


def _written(each: Alternative) -> Iterator[str]:
    """`write ...`, broken into lines; nothing where the file says it already."""
    line = "     write"
    for path, value in each.settings.items():
        part = f"{path}={value}".replace(" ", "") if path != COLOCATE else f"'{path}={value}'"
        if len(line) + len(part) + 1 > 96:
            yield line
            line = "          "
        line += f" {part}"
    if each.settings:
        yield line
