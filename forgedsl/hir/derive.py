"""Computes the defaults that a schema marks as `Derived`.

Each function gets the resolver and the declaration and returns a value; `DERIVED` maps
(kind or constructor, setting) to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forgedsl.hir.context import ERROR
from forgedsl.hir.file import File
from forgedsl.ir.program import Constructor, Origin, Value
from forgedsl.launchers import registry
from forgedsl.settings import Auto, Derived, Required
from forgedsl.sizes.hosts import under
from forgedsl.source import NO_SPAN

if TYPE_CHECKING:
    from forgedsl.hir.table import Declared
    from forgedsl.settings import Kind


DEFAULT = Origin(layer="default", detail="default", span=None)
_defaults: dict[int, tuple[Kind, dict[str, Value | None]]] = {}
"""kind and its defaults, by id of the kind; the kind is kept so that its id stays in use"""


def defaults(kind: Kind) -> dict[str, Value | None]:
    """Return the default of each setting of a kind; None for those that are derived or required."""
    if id(kind) not in _defaults:
        found = {
            setting.name: None
            if isinstance(setting.default, Derived | Required)
            else Value(value=setting.default, origin=DEFAULT)
            for setting in kind.settings
        }
        _defaults[id(kind)] = kind, found
    return _defaults[id(kind)][1]


def _host(name: str) -> Callable[[File, Declared], Any]:
    def value(resolver: File, declared: Declared) -> Any:
        sizes = [key for key in ("hosts", "gpus", "gpu") if key in declared.entries]
        given: dict[str, Any] = {key: resolver.setting(declared, key).value for key in sizes}
        known = {key: found for key, found in given.items() if found is not ERROR}
        launcher = resolver.setting(resolver.table.declared["launcher"], "value").value
        parts = 1
        if isinstance(launcher, Constructor) and registry.launcher(launcher.name).splits:
            parts = known.pop("hosts", 1)
        found = getattr(under(known, resolver.host), name)
        return found // parts if name == "gpus" else found

    return value


def _device(resolver: File, declared: Declared) -> Any:
    if "gpus" in declared.entries:
        gpus = resolver.setting(declared, "gpus").value
        if gpus is ERROR or gpus == 0:
            return "cpu"
    return "gpu" if _cluster_gpus(resolver) else "cpu"


def _gpus(resolver: File, declared: Declared) -> Any:
    if "device" in declared.entries:
        device = resolver.setting(declared, "device").value
        if device == "cpu":
            return 0
        if not isinstance(device, Auto):
            return 1
    return 1 if _cluster_gpus(resolver) else 0


def _cluster_gpus(resolver: File) -> bool:
    gpus = resolver.setting(resolver.table.declared["cluster"], "gpus").value
    return gpus is ERROR or gpus > 0


def _dtype(resolver: File, declared: Declared) -> Any:
    model = resolver.model_of(declared)
    return "bf16" if model is None else resolver.setting(model, "dtype").value


def _vllm_procs(resolver: File, declared: Declared) -> Any:
    product = 1
    for degree in ("parallel.tp", "parallel.pp", "parallel.dp"):
        value = resolver.setting(declared, degree).value
        if isinstance(value, Auto):
            return value
        product *= 1 if value is ERROR else value
    hosts = resolver.setting(declared, "hosts").value
    return product if hosts is ERROR else max(product // hosts, 1)


def _shuffle(resolver: File, declared: Declared) -> Any:
    seed = resolver.setting(resolver.table.declared["run"], "seed").value
    return seed if seed is ERROR else Constructor(name="seed", args={"seed": seed}, span=NO_SPAN)


DERIVED: dict[tuple[str, str], Callable[[File, Declared], Any]] = {
    ("run", "name"): lambda resolver, declared: str(resolver.stem),
    ("launcher", "value"): lambda resolver, declared: Constructor(
        name="local", args={}, span=NO_SPAN
    ),
    ("dataset", "shuffle"): _shuffle,
    ("service", "device"): _device,
    ("service", "gpus"): _gpus,
    ("service", "dtype"): _dtype,
    ("service", "mesh_name"): lambda resolver, declared: declared.name.replace(".", "_"),
    ("service", "procs"): _vllm_procs,
    **{
        ("cluster", name): _host(name)
        for name in ("hosts", "gpus", "gpu", "gpu_memory", "cpus", "memory")
    },
}
