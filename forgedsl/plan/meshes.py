"""Process meshes of the services: device, processes, parallel degrees, and where they run.

    service settings + host -> MeshPlan (autos resolved) -> placement on hosts and GPUs

Device, GPUs and processes of vllm services were derived from the host during resolution. Here
`dp_shard = auto` takes the remaining processes of hosts x procs, and the sizes are checked.
Errors: P201 parallel-product, P202 device-conflict, P203 gpus-exceed-host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from forgedsl import surface
from forgedsl.diagnostics import Diagnostic, Label, Reporter, counted, error
from forgedsl.ir.program import Decl
from forgedsl.records import dataclass, replace
from forgedsl.services.registry import kind_of
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.meshes import Degrees, MeshPlan, Place, is_default, number, setting_label, value
from forgedsl.source import Span

CHOSEN = ("procs", "replicas", "parallel.tp", "parallel.cp", "parallel.ep", "batch.rows",
          "memory.activation_checkpoint")  # fmt: skip
"""settings of services that the plan chooses if they are `auto`; it also chooses `colocate`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Inputs of P203's message: a description of the host, and the use of a GPU if services shared
    theirs ("61.2 of 80 GiB", "" if that does not fit)."""

    host_name: str
    fits: Callable[[tuple[str, ...]], str]


def plan_mesh(decl: Decl, reporter: Reporter) -> MeshPlan:
    """Compute all sizes of a service; report P201 and P202."""
    gpus, device = _device(decl, reporter)
    kind = kind_of(decl.ctor)
    hosts = number(decl, "hosts", 1)
    # 0: takes the rest; a degree that the plan chooses is unknown yet
    degrees = {n: number(decl, f"parallel.{n}", int(n != kind.spread)) for n in kind.degrees}
    product = prod(degree for degree in degrees.values() if degree)
    procs = number(decl, "procs", 1)
    if kind.spread and degrees[kind.spread] == 0:
        degrees[kind.spread] = max(1, hosts * procs // product)
    if gpus > 1:
        reporter.report(_idle_gpus(decl, gpus, hosts, procs))
    if prod(degrees.values()) != hosts * procs:
        reporter.report(_parallel_product(decl, degrees, hosts, procs))
    return MeshPlan(
        service=decl.name,
        kind=kind.name,
        name=str(value(decl, "mesh_name") or decl.name),
        hosts=hosts,
        procs=procs,
        gpus=gpus,
        cpus=_optional_int(decl, "cpus"),
        device=device,
        replicas=number(decl, "replicas", 1) if kind.replicated else 1,
        degrees=Degrees(degrees),
        ep=number(decl, f"parallel.{kind.within}", 1) if kind.within else 1,
    )


def _optional_int(decl: Decl, key: str) -> int | None:
    found = decl.settings[key].value
    return found if isinstance(found, int) else None


def _device(decl: Decl, reporter: Reporter) -> tuple[int, str]:
    """Return (GPUs per process, device). The default of each depends on the other."""
    gpus = number(decl, "gpus", 0)
    device = decl.settings["device"]
    if is_default(device):
        return gpus, "gpu" if gpus else "cpu"
    if device.value == "cpu":
        if gpus:
            reporter.report(
                _device_conflict(decl, f"`device = cpu`, but gpus = {gpus}", "gpus = 0")
            )
        return 0, "cpu"
    if gpus == 0:
        reporter.report(_device_conflict(decl, "`device = gpu`, but gpus = 0", "gpus = 1"))
    return gpus, "gpu"


def _idle_gpus(decl: Decl, gpus: int, hosts: int, procs: int) -> Diagnostic:
    """Report `gpus` above 1: it is per process, and a process computes on one GPU."""
    return error(
        "P202",
        "device-conflict",
        f"a process of `{decl.name}` can use only one GPU, but `gpus = {gpus}`",
        decl.settings["gpus"].origin.span or decl.name_span,
        help=f"`procs = {gpus * procs}` uses {gpus * procs * hosts} GPUs, one per process",
    )


def _device_conflict(decl: Decl, what: str, remedy: str) -> Diagnostic:
    return error(
        "P202",
        "device-conflict",
        f"service `{decl.name}` has {what}",
        decl.settings["gpus"].origin.span or decl.name_span,
        related=setting_label(decl, "device"),
        help=f"`{remedy}`, or remove `device`",
    )


def _parallel_product(decl: Decl, degrees: Mapping[str, int], hosts: int, procs: int) -> Diagnostic:
    shown = {name: degree for name, degree in degrees.items() if degree > 1} or dict(degrees)
    product = " x ".join(f"{name} {degree}" for name, degree in shown.items())
    spread, world = kind_of(decl.ctor).spread, hosts * procs
    others = prod(degree for name, degree in degrees.items() if name != spread)
    if spread and world % others == 0:
        help = f"`parallel.{spread} = {world // others}` (or `auto`) fits {world} processes"
    elif prod(degrees.values()) % hosts == 0:
        help = f"`procs = {prod(degrees.values()) // hosts}` fits these degrees"
    else:
        help = "make the product of the degrees equal to hosts x procs"
    written = [n for n in shown if not is_default(decl.settings[f"parallel.{n}"])]
    labels = [label for n in written for label in setting_label(decl, f"parallel.{n}")]
    return error(
        "P201",
        "parallel-product",
        f"service `{decl.name}` has {world} processes, but the product of its parallel degrees is "
        f"{prod(degrees.values())}",
        labels[0].span if labels else decl.name_span,
        related=(*labels[1:2], *setting_label(decl, "procs"))[:3],
        notes=(f"hosts {hosts} x procs {procs} = {world}; {product} = {prod(degrees.values())}",),
        help=help,
    )


# ---- placement


def place(
    meshes: Sequence[MeshPlan],
    decls: Mapping[str, Decl],
    host: Host,
    colocate: Sequence[str],
    reporter: Reporter,
    advice: Advice,
    *,
    spread: bool = False,
) -> tuple[MeshPlan, ...]:
    """Assign hosts and GPUs to meshes, first fit in order of declaration; report P203.

    Colocated services share the GPUs of the largest. Services without GPUs are `spread` over the
    hosts, or stay on the first. `advice` is for the message.
    """
    free: list[list[int]] = [list(range(host.gpus)) for _ in range(host.hosts)]
    load = [0] * host.hosts if spread else None
    placed: dict[str, MeshPlan] = {}
    shared = sorted(
        (m for m in meshes if m.service in colocate), key=lambda m: m.total_gpus, reverse=True
    )
    alone = [m for m in meshes if m.service not in colocate]
    pool = None
    for mesh in (*shared[:1], *alone):
        places = _fit(mesh, free, load)
        if places is None:
            reporter.report(_exceeds(meshes, decls, host, colocate, advice))
            return tuple(meshes)
        placed[mesh.service] = replace(mesh, places=places)
        if shared and mesh is shared[0]:
            pool = places
    for mesh in shared[1:]:
        assert pool is not None
        inner = [
            sorted({g for p in pool if p.host == h for g in p.gpus}) for h in range(host.hosts)
        ]
        places = _fit(mesh, inner)
        if places is None:
            reporter.report(_exceeds(meshes, decls, host, colocate, advice))
            return tuple(meshes)
        placed[mesh.service] = replace(mesh, places=places)
    return tuple(placed[mesh.service] for mesh in meshes)


def _fit(
    mesh: MeshPlan, free: list[list[int]], load: list[int] | None = None
) -> tuple[Place, ...] | None:
    """Take GPUs for every replica from `free`; None if they do not fit. A replica gets the same GPU
    numbers on consecutive hosts. A replica without GPUs goes to the host with the fewest processes
    (`load`)."""
    need, starts = mesh.procs * mesh.gpus, range(len(free) - mesh.hosts + 1)
    places: list[Place] = []
    start = 0
    for replica in range(mesh.replicas):
        if load is not None and not need:
            start = min(starts, key=lambda i: sum(load[i : i + mesh.hosts]), default=len(starts))
        while start in starts and len(_common(free[start : start + mesh.hosts])) < need:
            start += 1  # a host without free GPUs now has none for later replicas
        if start not in starts:
            return None
        gpus = _common(free[start : start + mesh.hosts])[:need]
        for index in range(start, start + mesh.hosts):
            places.append(Place(replica=replica, host=index, gpus=tuple(gpus)))
            free[index] = [gpu for gpu in free[index] if gpu not in gpus]
            if load is not None:
                load[index] += mesh.procs
    return tuple(places)


def _common(free: Sequence[Sequence[int]]) -> list[int]:
    """Return the GPUs that are free on all of these hosts."""
    return sorted(set(free[0]).intersection(*free[1:]))


def pools_host(meshes: Sequence[MeshPlan], trainer: str, hosts: int) -> int:
    """Return the host of rewards and environments: one without the trainer, with the fewest
    processes."""
    procs, trains = [0] * hosts, set()
    for mesh in meshes:
        for place in mesh.places:
            procs[place.host] += mesh.procs
            trains |= {place.host} if mesh.service == trainer else set()
    used = {place.host for mesh in meshes for place in mesh.places} or {0}
    return min(sorted(used), key=lambda index: (index in trains, procs[index]))


def _exceeds(
    meshes: Sequence[MeshPlan],
    decls: Mapping[str, Decl],
    host: Host,
    colocate: Sequence[str],
    advice: Advice,
) -> Diagnostic:
    rows = [mesh for mesh in meshes if mesh.gpus or mesh.hosts > host.hosts]
    shared = max((m.total_gpus for m in rows if m.service in colocate), default=0)
    need = shared + sum(m.total_gpus for m in rows if m.service not in colocate)
    have = host.hosts * host.gpus
    where = (
        f"{advice.host_name} has {counted(have, 'GPU')}"
        if host.hosts == 1
        else f"the {host.hosts} hosts have {have} GPUs"
    )
    if host.gpus == 0:
        where = f"{advice.host_name} has no GPU"
    largest = max(rows, key=lambda mesh: mesh.total_gpus)
    wide = [mesh for mesh in rows if mesh.hosts > host.hosts]
    if wide:
        are = "is" if host.hosts == 1 else "are"
        message = (
            f"service `{wide[0].service}` needs {wide[0].hosts} hosts, but there {are} {host.hosts}"
        )
    elif need > have:
        message = f"{where}, but the plan needs {need}"
    else:
        message = (
            f"{where}; the plan's {need} GPUs would be enough in total, but services do not "
            "fit on single hosts"
        )
    decl = decls[(wide or [largest])[0].service]
    remedy = _remedy(rows, need, have, host, colocate, advice)
    if wide:
        remedy = f"`hosts = {host.hosts}` here, or `cluster {{ hosts = {wide[0].hosts} }}`"
    return error(
        "P203",
        "gpus-exceed-host",
        message,
        _written(decl) or decl.name_span,
        table=_table(rows, decls),
        help=remedy,
    )


SIZES = ("hosts", "procs", "gpus", "replicas")


def _table(rows: Sequence[MeshPlan], decls: Mapping[str, Decl]) -> tuple[str | Label, ...]:
    """Return rows `generator  procs 2 x gpus 1 x replicas 4 =  8`, with the origins of the
    sizes."""
    sizes = {mesh.service: _sizes(mesh) for mesh in rows}
    name, size = max(map(len, sizes)), max(map(len, sizes.values()))
    found: list[str | Label] = []
    for mesh in rows:
        text = f"   {mesh.service:<{name}}  {sizes[mesh.service]:<{size}} = {mesh.total_gpus:>2}"
        decl = decls[mesh.service]
        settings = [decl.settings[key] for key in SIZES if key in decl.settings]
        outer = ("set", "set-file", "profile")
        details = [s.origin.detail for s in settings if s.origin.layer in outer]
        place = _written(decl)
        if details:
            found.append(f"{text}    {', '.join(dict.fromkeys(details))}")
        else:
            found.append(Label(text=text, span=place) if place is not None else text)
    return tuple(found)


def _sizes(mesh: MeshPlan) -> str:
    parts = [f"hosts {mesh.hosts}"] if mesh.hosts > 1 else []
    parts += [f"procs {mesh.procs}", f"gpus {mesh.gpus}"]
    parts += [f"replicas {mesh.replicas}"] if mesh.replicas > 1 else []
    return " x ".join(parts)


def _written(decl: Decl) -> Span | None:
    """Return the span of the first size that the declaration sets."""
    settings = (decl.settings[key] for key in SIZES if key in decl.settings)
    texts = ("file", "module")
    places = [s.place for s in settings if s.place is not None and s.origin.layer in texts]
    return min(places, key=lambda span: span.start, default=None)


def _remedy(
    rows: Sequence[MeshPlan],
    need: int,
    have: int,
    host: Host,
    colocate: Sequence[str],
    advice: Advice,
) -> str:
    """Suggest a change that fits: fewer replicas, or shared GPUs if their memory suffices."""
    if host.gpus == 0:
        named = surface.option("--profile", "NAME")
        return f"choose a profile for hosts without GPUs with {named}, or set `device = cpu`"
    found = []
    many = max(rows, key=lambda mesh: (mesh.replicas, mesh.total_gpus))
    if many.replicas > 1 and many.service not in colocate:
        spare = have - (need - many.total_gpus)
        fitting = spare // (many.world * many.gpus)
        if fitting >= 1:
            found.append(f"replicas = {fitting} fits")
    for shared in (
        [m for m in rows if kind_of(m.kind).trains],
        rows,
    ):  # sharing with a frozen model loses no overlap
        names = tuple(mesh.service for mesh in shared)
        saved = sum(m.total_gpus for m in shared) - max((m.total_gpus for m in shared), default=0)
        room = advice.fits(names) if saved and need - saved <= have and not colocate else ""
        if room:
            also = "also fits" if found else "fits"
            found.append(f"`colocate = [{', '.join(names)}]` {also} at {room}")
            break
    return "; ".join(found) or "use fewer processes, or declare a larger `cluster`"
