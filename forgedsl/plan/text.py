"""Prints a plan as text, at most 100 columns wide.

    Program + Graph + Plan -> sections (hosts, memory, queues, policy age, liveness, cost) -> text

Every number is shown with its origin: sizes and bounds with their formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from textwrap import wrap

from forgedsl.diagnostics import counted
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Program
from forgedsl.operations.registry import operation
from forgedsl.plan.advised import SHORTER, tried, with_larger_microbatches
from forgedsl.plan.calibration import calibration_text
from forgedsl.plan.capacity import TIGHT, Store
from forgedsl.plan.cost import DEAD_RATES, Cost, by_service, plan_cost, time_text
from forgedsl.plan.host import host_text
from forgedsl.plan.liveness import credit_loops, exits
from forgedsl.plan.plan import Plan
from forgedsl.plan.recording import recording, size_text
from forgedsl.plan.reward_times import Scoring
from forgedsl.plan.router_replay import replays, route_bytes
from forgedsl.plan.schedule import looser
from forgedsl.plan.sizes import PlannedSizes
from forgedsl.plan.stage import Stage
from forgedsl.records import replace
from forgedsl.services.registry import kind_of
from forgedsl.sizes.memory import GIB, PHASES, RankMemory
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.types.flow import Role

WIDTH = 100
HOST_ROWS = 6
KEEPS_UP = 1.5
"""an engine keeps up if it takes at most this multiple of the others' time"""


def render_plan(
    program: Program, graph: Graph, plan: Plan, *, summary: Sequence[str], identity: str
) -> str:
    """Return the whole page, ending in a newline."""
    sections = [
        ("placement", placement_lines(plan)),
        ("memory", list(_memory(plan))),
        ("queues", _queues(graph, plan)),
        ("policy age", _age(graph, plan)),
        ("replay", list(_replay(graph, plan))),
        ("recorded steps", list(_recorded(graph, plan))),
        ("liveness", list(_liveness(graph, plan))),
        ("cost of a step, estimated for the longest samples", list(_cost(graph, plan))),
        ("groups without a gradient (dead groups)",
         list(_dead(plan)) if graph.having(Role.SCORES) else []),
        ("removed", [f"{', '.join((*part.nodes, *part.services)) or 'field'}: {part.reason}"
                     for part in graph.removed]),
    ]  # fmt: skip
    head = f"{summary[0]:<{WIDTH - 18}}  plan {identity[:10]}".rstrip()
    blocks = ["\n".join([head, *summary[1:2]])]
    for title, lines in sections:
        if lines:
            blocks.append("\n".join([title, *(f"  {line}".rstrip() for line in lines)]))
    return "\n\n".join(blocks) + "\n"


# ---- placement


def placement_lines(plan: Plan) -> list[str]:
    """Return the lines of hosts, meshes, and the services on each GPU."""
    lines = [host_text(plan.host)]
    rows = [
        (
            _letter(plan, mesh) if mesh.gpus else "",
            mesh.service,
            mesh.text if mesh.gpus else f"{mesh.text} (cpu)",
            _degrees(mesh) or _hosts(mesh),
        )
        for mesh in plan.meshes
    ]
    rows += [("", name, f"served by {on}", "") for name, on in plan.cost.engines.items()]
    lines += table(rows)
    if plan.chosen:
        text = ", ".join(f"{path} = {value}" for path, value in plan.chosen.items())
        lines += wrap(f"values chosen by the plan: {text}", WIDTH - 2, subsequent_indent="  ")
    if plan.colocate:
        *others, last = plan.colocate
        lines.append(f"{', '.join(others)} and {last} share GPUs and take turns")
    return [*lines, *_grid(plan)]


def _hosts(mesh: MeshPlan) -> str:
    """Return the hosts of processes without GPUs; "" if all are on the first host."""
    if mesh.gpus or not any(place.host for place in mesh.places):
        return ""
    return "host " + ", ".join(str(place.host) for place in mesh.places)


def _degrees(mesh: MeshPlan) -> str:
    return ", ".join(f"{name} {d}" for name, d in mesh.split.items())


def _letter(plan: Plan, mesh: MeshPlan) -> str:
    """Return the shortest prefix of the name that no other service shares."""
    others = [m.service for m in plan.meshes if m.service != mesh.service and m.gpus]
    for length in range(1, len(mesh.service) + 1):
        start = mesh.service[:length]
        if not any(name.startswith(start) for name in others):
            return start
    return mesh.service


def _grid(plan: Plan) -> list[str]:
    """Return a row per host with the services on each GPU. Consecutive equal rows are merged."""
    if not any(mesh.gpus for mesh in plan.meshes):
        return []
    cells: dict[tuple[int, int], list[str]] = {}
    for mesh in plan.meshes:
        letter = _letter(plan, mesh)
        counts: dict[int, int] = {}
        for place in mesh.places:
            for gpu in place.gpus:
                rank = counts.get(place.replica, 0)
                counts[place.replica] = rank + 1
                number = place.replica if kind_of(mesh.kind).replicated else rank
                name = f"{letter}{number}"
                cells.setdefault((place.host, gpu), []).append(name)
    used = sorted({host for host, _ in cells})
    width = max(max(len("+".join(names)) for names in cells.values()), 2) + 2
    columns = range(plan.host.gpus)
    lines = ["".ljust(10) + "".join(f"{gpu:<{width}}" for gpu in columns) + "GPU"]
    shown = used if len(used) <= HOST_ROWS else [*used[: HOST_ROWS - 1], used[-1]]
    for host in shown:
        if host == used[-1] and len(shown) < len(used):
            lines.append(f"  ... {len(used) - len(shown)} more hosts")
        row = "".join(f"{'+'.join(cells.get((host, gpu), ['.'])):<{width}}" for gpu in columns)
        lines.append(f"{f'host {host}':<10}{row}".rstrip())
    if len(used) < plan.host.hosts:
        lines.append(f"{plan.host.hosts - len(used)} of {plan.host.hosts} hosts are not used")
    return lines


# ---- memory


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    if memory.ranks:
        yield f"{'GiB of one process':<26}{''.join(f'{phase:>9}' for phase in PHASES)}   from"
    for rank in memory.ranks:
        yield from _rank(plan, rank)
    for name in memory.unknown:
        yield (
            f"{name}: unknown, because its model's dimensions are not known here; set the "
            "model's `arch`"
        )
    if memory.ranks:
        yield ""
    for store in memory.stores:
        yield from _store(store)


def _rank(plan: Plan, rank: RankMemory) -> Iterator[str]:
    notes = [rank.note] if rank.note else []
    if rank.fraction is not None:
        notes.append(f"takes {rank.fraction:g} of its GPU")
    rows = plan.memory.fitting_rows(rank.service)
    if rows is not None:
        shape = plan.rows[rank.service]
        notes.append(
            f"rows = {shape.rows}, at most {rows} of {shape.seq_len} tokens fit"
            if rows < 4096
            else f"rows = {shape.rows}, thousands of {shape.seq_len} tokens fit"
        )
    yield _row(f"{rank.service} x {rank.ranks}", [rank.bytes(p) for p in PHASES], "; ".join(notes))
    items: dict[str, list[int]] = {}
    formulas: dict[str, str] = {}
    for index, phase in enumerate(rank.phases):
        for item in phase.items:
            items.setdefault(item.name, [0, 0, 0])[index] = item.bytes
            formulas[item.name] = item.formula
    last = "kept by the allocator"
    for name in sorted(items, key=lambda name: name == last):
        sizes = items[name]
        if max(sizes) >= 0.005 * rank.peak:
            yield _row(f"  {name}", sizes, formulas[name])


def _row(name: str, sizes: Sequence[int], note: str) -> str:
    room = WIDTH - 2 - 26 - 27 - 3
    note = note if len(note) <= room else f"{note[: room - 3]}..."
    return f"{name:<26}{''.join(f'{_gib(size):>9}' for size in sizes)}   {note}"


def _gib(size: int) -> str:
    if not size:
        return "."
    return f"{size / GIB:,.1f}" if size >= 0.095 * GIB else f"{size / GIB:.3f}"


def _store(store: Store) -> Iterator[str]:
    count = f" x {store.count}" if store.count > 1 else ""
    size = f"{_gib(store.bytes)} of {store.capacity / GIB:,.1f} GiB"
    name = store.name + count
    room = 30 - max(0, len(name) - 34)
    bar = "#" * min(room, round(room * store.share))
    warn = "  tight" if TIGHT <= store.share <= 1 else ""
    yield f"{name:<34}{size:>22}  {100 * store.share:3.0f} %  {bar:.<{room}}{warn}"


# ---- queues and age


def _queues(graph: Graph, plan: Plan) -> list[str]:
    rows = [("", "holds at most", "works on at once", "")]
    for node in graph.nodes:
        if not node.stream:
            continue
        unit = "batch" if node.level.value == "batch" else "group"
        capacity, slots = plan.capacities[node.name], plan.slots[node.name]
        rows.append((node.name, _many(capacity, unit), _many(slots, unit), _why(plan, capacity)))
    return table(rows)


def _many(count: int, unit: str) -> str:
    plural = {"batch": "batches", "group": "groups"}[unit]
    return f"{count} {unit if count == 1 else plural}"


def _why(plan: Plan, capacity: int) -> str:
    return "= credits" if capacity == plan.schedule.staleness.credits > 1 else ""


def _age(graph: Graph, plan: Plan) -> list[str]:
    schedule = plan.schedule
    if schedule.every is None:
        return ["no weight sync, so samples have no age"]
    staleness = schedule.staleness
    later = " + every - 1" if staleness.every > 1 else ""
    allowed = "" if schedule.max_policy_age is None else f", allowed {schedule.max_policy_age}"
    epochs, many = graph.updates
    updates, within = epochs * many, []
    if updates > 1:
        last = updates * staleness.age_bound + updates - 1
        within = [
            f"worst age in updates, at the last of the {updates} updates of a step: "
            f"{updates} x {staleness.age_bound} + {updates} - 1 = {last}"
        ]
    return [
        f"worst age  (B + W - 2) // P{later} = {staleness.formula} step"
        f"{'' if staleness.age_bound == 1 else 's'}{allowed}",
        *within,
        f"credits    B = (S + 1) P = ({staleness.lag} + 1) x {staleness.prompts} = "
        f"{staleness.credits} groups alive, {staleness.prompts} a step, lag S = {staleness.lag}",
        f"window     W = {staleness.window}"
        + (
            ", strictly first in, first out"
            if staleness.window == 1
            else (" groups may be trained out of order")
        ),
    ]


def _replay(graph: Graph, plan: Plan) -> Iterator[str]:
    """Yield the lines about router replay, and about replay buffers: groups drawn from earlier
    steps, and their memory."""
    sizes = PlannedSizes(plan.request, graph)
    if replays(plan.request.program, graph, plan.request.dims):
        trainer = str(graph.trainer)
        dims = plan.request.dims[trainer]
        assert dims is not None
        per_token = route_bytes(dims)
        tokens = sum(
            stage.tokens
            for stage in plan.cost.stages
            if stage.service == trainer and Role.UPDATES in stage.roles
        )
        yield (
            f"routes: {trainer} chooses the experts that the sampler chose, {per_token:,} B a "
            f"token, {_si(per_token * tokens)}B a step"
        )
    for node in graph.nodes:
        yield from operation(node.op).plan_lines(node, sizes)


def _recorded(graph: Graph, plan: Plan) -> Iterator[str]:
    """Yield the disk that the completions of recorded steps take."""
    found = recording(graph, plan)
    if found is None:
        return
    last = "all" if found.steps is None else f"the last {found.steps}"
    step = f"about {size_text(found.usual_bytes)} a step (at most {size_text(found.step_bytes)})"
    if found.bytes is None or found.usual is None:
        yield f"{last}, {step}"
    else:
        most = f" (at most {size_text(found.bytes)})" if found.bytes > found.usual else ""
        yield f"{last}, {step}, {size_text(found.usual)} in all{most}"


def _liveness(graph: Graph, plan: Plan) -> Iterator[str]:
    schedule = plan.schedule
    for loop in credit_loops(graph, schedule):
        source = graph.node(loop[0])
        quota = graph.quota(source)
        credits = schedule.staleness.credits * quota // schedule.staleness.prompts
        yield f"{' > '.join((*loop, loop[0]))}"
        yield f"  {credits} credits, a step needs {quota}: no deadlock"
    rows = [(edge.failure, edge.effect) for edge in exits(graph, schedule)]
    yield from table(rows)


# ---- cost


def _cost(graph: Graph, plan: Plan) -> Iterator[str]:
    cost = plan.cost
    if cost.stages:
        busy = {name: cost.busy(name) for name in by_service(cost.stages)}
        rows = [("", "on", "tokens", "FLOP", "bytes", "time", "busy", "")]
        for stage in cost.stages:
            share = (
                f"{100 * busy[stage.service]:.0f} %" if Role.TRANSFERS not in stage.roles else ""
            )
            sizes = (_si(stage.tokens), _si(stage.flops), _si(stage.bytes))
            time = time_text(stage.seconds)
            rows.append((stage.node, stage.service, *sizes, time, share, stage.detail))
        yield from (line[: WIDTH - 2] for line in table(rows, right=(2, 3, 4, 5, 6)))
        for stage in cost.stages:
            if stage.exchanged:
                yield (
                    f"experts: in each {stage.node}, a rank of {stage.service} exchanges "
                    f"{stage.exchanged / GIB:,.1f} GiB with other ranks, which takes "
                    f"{time_text(stage.experts_s)}"
                )
        devices = (stage.device for stage in cost.stages)
        if known := calibration_text(plan.request.program, plan.host, devices):
            yield known
        for scoring in cost.scorings:
            yield from _scoring(cost, scoring)
        slowest = cost.bottleneck
        assert slowest is not None
        how = "stages overlap" if cost.overlapped else "stages take turns"
        yield f"{how}: about {time_text(cost.step_seconds)} a step, {_run_time(plan)}"
        if cost.waits:
            yield (
                f"bottleneck: the policy age; {counted(cost.lag + 1, 'batch')} in flight, each "
                f"{time_text(cost.batch_latency)} from first token to new weights"
            )
        elif (reward := cost.bottleneck_reward) is not None:
            yield f"bottleneck: the calls of {reward.reward}; {_more(reward)}"
        else:
            yield f"bottleneck: {slowest.node} on {slowest.service}{_balance(graph, plan)}"
        yield from _looser(graph, plan, slowest)
        yield from _larger(graph, plan, slowest)
    for name in cost.unknown:
        yield f"{name}: unknown, because its model's dimensions are not known here"


def _scoring(cost: Cost, scoring: Scoring) -> Iterator[str]:
    """Yield the lines about the calls of a reward. An assumed time is left out of the step."""
    if scoring.measured:
        yield scoring_text(scoring)
        return
    yield f"{scoring_text(scoring)}, left out"
    if cost.limited_by(scoring):
        yield f"  if so, a step takes longer: {_more(scoring)}, or measure it (forgec calibrate)"


def scoring_text(scoring: Scoring) -> str:
    """Describe the calls of a reward: "128 calls of correct x 50 ms (assumed) in 1 process take
    6.4 s"."""
    at_once = f" with {scoring.at_once} at once" if scoring.at_once > 1 else ""
    known = "measured" if scoring.measured else "assumed"
    processes = "1 process" if scoring.procs == 1 else f"{scoring.procs} processes"
    return (
        f"{scoring.calls:,} calls of {scoring.reward} x {time_text(scoring.call)} ({known}) in "
        f"{processes}{at_once} take {time_text(scoring.seconds)}"
    )


def _more(scoring: Scoring) -> str:
    return f"give it more `{scoring.reward}.procs`"


def _looser(graph: Graph, plan: Plan, slowest: Stage) -> Iterator[str]:
    """Yield advice to allow one more batch under way, if the compiler accepts it. It helps if all
    services wait for batches, or if all wait for an engine that decodes too few sequences at once.
    """
    cost = plan.cost
    engine = slowest.node in {node.name for node in graph.having(Role.SAMPLES)}
    if not cost.overlapped or plan.schedule.every is None or not (cost.waits or engine):
        return
    settings = looser(plan.request.program, graph, plan.schedule)
    then, _ = tried(plan, graph, settings)
    if then is not None and then.cost.step_seconds < SHORTER * cost.step_seconds:
        batches = "" if cost.waits else " batches in flight"
        why = "" if cost.waits else "it decodes more at once, and "
        needs = ", ".join(f"`{p.removeprefix('schedule.')} = {v}`" for p, v in settings.items())
        line = f"with {then.cost.lag + 1}{batches} ({needs})"
        last = f"{why}a step takes {time_text(then.cost.step_seconds)}"
        yield from (f"  {line} {last}",) if len(settings) == 1 else (f"  {line}", f"    {last}")


def _larger(graph: Graph, plan: Plan, slowest: Stage) -> Iterator[str]:
    """Yield advice on larger microbatches, if a step waits for the trainer."""
    if plan.cost.overlapped and (plan.cost.waits or slowest.service != graph.trainer):
        return
    then = with_larger_microbatches(plan, graph)
    if then is not None:
        rows = then.rows[graph.trainer].rows
        yield f"  with {rows} rows in a microbatch (`{graph.trainer}.batch.rows = {rows}`)"
        yield f"    a step takes {time_text(then.cost.step_seconds)}"


def _run_time(plan: Plan) -> str:
    steps = plan.schedule.steps
    if steps is None:
        return f"{_si(plan.cost.flops)} FLOP"
    return (
        f"{time_text(steps * plan.cost.step_seconds)} for {counted(steps, 'step')}, "
        f"{_si(plan.cost.flops)} FLOP a step"
    )


def _balance(graph: Graph, plan: Plan) -> str:
    """Suggest a number of replicas that evens out sampling and training. With more replicas, each
    decodes fewer sequences at once; an engine with few sequences does not get faster by that.
    """
    cost = plan.cost
    times = by_service(cost.stages)
    slowest = cost.bottleneck
    if slowest is None or not cost.overlapped:
        return ""
    if not kind_of(plan.mesh(slowest.service).kind).replicated:
        return ""
    others = max((t for name, t in times.items() if name != slowest.service), default=0.0)
    replicas = plan.mesh(slowest.service).replicas
    if others <= 0 or times[slowest.service] < KEEPS_UP * others:
        return ""
    wanted = ceil(replicas * times[slowest.service] / others)
    wider = replace(plan.mesh(slowest.service), replicas=wanted)
    meshes = tuple(wider if mesh.service == slowest.service else mesh for mesh in plan.meshes)
    request = replace(plan.request, meshes=meshes)
    then = plan_cost(request, graph, plan.schedule, plan.colocate, plan.memory.ranks)
    if by_service(then.stages)[slowest.service] > KEEPS_UP * others:
        return ""
    accepted, errors = tried(plan, graph, {f"{wider.service}.replicas": wanted})
    if accepted is None and set(errors) != {"P203"}:
        return ""
    where = ", on more GPUs" if accepted is None else ""
    return f"; about {wanted} replicas would keep up with the others{where}"


def _dead(plan: Plan) -> Iterator[str]:
    for group in plan.cost.dead:
        yield (
            f"probability that all {group.size} completions of {group.node} get the same score, "
            "which gives no gradient:"
        )
        rows = [("success rate", *(f"{100 * p:.0f} %" for p in DEAD_RATES))]
        rows.append(("dead", *(f"{100 * group.probability(p):.1f} %" for p in DEAD_RATES)))
        if group.filtered:
            rows.append(("drawn per kept", *(f"{group.oversampling(p):.1f}" for p in DEAD_RATES)))
        yield from table(rows, right=range(1, 6))


def _si(value: float) -> str:
    """Format a large number: 196,608 -> 197 k, 2.5e15 -> 2.54 P."""
    if not value:
        return "."
    for limit, unit in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Align columns of rows, two blanks apart; columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if i in right else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
