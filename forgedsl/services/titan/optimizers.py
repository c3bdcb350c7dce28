"""Optimizers of a torchtitan model: their state in bytes, and settings that they do not read.

settings, parameters -> bytes of moments;  settings -> F113
"""

from __future__ import annotations

from forgedsl.diagnostics import Diagnostic, error
from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl
from forgedsl.sizes.meshes import is_default, number, setting_label, value
from forgedsl.sizes.optimizers import checkpoint_bytes
from forgedsl.sizes.params import adapter_params

SETTINGS_BY_OPTIMIZER = {
    "adamw": ("betas", "eps"),
    "adam": ("betas", "eps"),
    "muon": ("betas", "eps", "momentum", "nesterov", "ns_steps", "adjust_lr"),
    "sgd": ("momentum", "nesterov"),
}
"""settings that only some kinds of optimizer read, by `optimizer.kind`"""
MOMENTUM = {"muon": 0.95}
"""value of `auto` by kind of optimizer; 0 for others"""


def momentum(decl: Decl) -> float:
    """Return the momentum of a trainer's optimizer: as set, else the default of its kind."""
    found = value(decl, "optimizer.momentum")
    usual = MOMENTUM.get(str(value(decl, "optimizer.kind")), 0.0)
    return float(found) if isinstance(found, int | float) else usual


def nesterov(decl: Decl) -> bool:
    """True if the optimizer uses Nesterov momentum."""
    found = value(decl, "optimizer.nesterov")
    return found if isinstance(found, bool) else value(decl, "optimizer.kind") == "muon"


def checkpoint_of(decl: Decl, dims: Dims) -> int:
    """Return the bytes of a checkpoint of a service."""
    rank = number(decl, "lora.rank", 0)
    return checkpoint_bytes(
        dims, str(value(decl, "optimizer.kind", "adamw")),
        str(value(decl, "optimizer.precision", "f32")), momentum=momentum(decl),
        adapters=adapter_params(dims, rank) if rank else 0,
    )  # fmt: skip


def check_optimizer(decl: Decl) -> list[Diagnostic]:
    """Report F113: settings of another kind of optimizer, and precisions that a kind does not
    support."""
    kind = str(value(decl, "optimizer.kind"))
    names = dict.fromkeys(name for read in SETTINGS_BY_OPTIMIZER.values() for name in read)
    found = [
        _bad(decl, name, f"`optimizer.{name}` has no effect with `kind = {kind}`", "remove it")
        for name in names
        if name not in SETTINGS_BY_OPTIMIZER[kind]
        and not is_default(decl.settings[f"optimizer.{name}"])
    ]
    if kind not in ("adamw", "adam") and value(decl, "optimizer.precision") == "bf16_moments":
        message = (
            f"`precision = bf16_moments` is supported only for adamw and adam, not for `{kind}`"
        )
        found.append(_bad(decl, "precision", message, "set `precision = f32` or `bf16`"))
    if kind == "sgd" and nesterov(decl) and not momentum(decl):
        found.append(_bad(decl, "nesterov", "`optimizer.nesterov` has no effect without momentum",
                          "set `optimizer.momentum`, or remove `optimizer.nesterov`"))  # fmt: skip
    if kind == "muon" and value(decl, "memory.offload"):
        message = (
            "`muon` multiplies whole matrices, which is not supported while `memory.offload` keeps "
            "them in host memory"
        )
        remedy = "remove `memory.offload`, or set `kind = adamw`"
        found.append(_bad(decl, "kind", message, remedy))
    return found


def _bad(decl: Decl, name: str, message: str, remedy: str) -> Diagnostic:
    at = decl.settings[f"optimizer.{name}"].origin.span or decl.name_span
    related = setting_label(decl, "optimizer.kind") if name != "kind" else ()
    return error("F113", "bad-value", message, at, related=related, help=remedy)
