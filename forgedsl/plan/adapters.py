"""P217: the adapter of a model cannot be merged into it."""

from __future__ import annotations

from pathlib import Path

from forgedsl.diagnostics import Diagnostic, error
from forgedsl.ir.program import Constructor, Decl
from forgedsl.shipped import locate

MADE = "`forgec export RUN --adapter` and PEFT's `save_pretrained` write such a folder"
MERGED = "merge the adapter with PEFT, and name the result as the `source`"


def check_adapter(model: Decl, base_dir: Path | None) -> list[Diagnostic]:
    """P217: the model has random weights, or the folder beside the file has no adapter, one of a
    kind that is not merged, or one of another model. A run checks folders of the hub at its
    start."""
    adapter, source = model.settings["adapter"].value, model.settings["source"].value
    if not isinstance(adapter, Constructor) or not isinstance(source, Constructor):
        return []
    from forgedsl.adapters import UnfitAdapter, misfit, model_shapes, read_adapter

    def refused(why: str, remedy: str) -> list[Diagnostic]:
        message = f"the adapter of `{model.name}` cannot be merged: {why}"
        return [error("P217", "adapter", message, adapter.span, help=remedy)]

    if source.name == "random":
        return refused("the model has random weights", 'name its base as `source`: hf("...")')
    if adapter.name != "local" or base_dir is None:
        return []
    folder = locate(str(adapter.args["path"]), base_dir)
    if not folder.exists():
        return []  # P210 reports it
    try:
        found = read_adapter(folder)
    except UnfitAdapter as why:
        return refused(str(why), MADE if "has no" in str(why) else MERGED)
    if source.name != "local":
        return []
    shapes = model_shapes(locate(str(source.args["path"]), base_dir))
    wrong = misfit(found, shapes) if shapes else ""
    if not wrong:
        return []
    return refused(wrong, "name the model that the adapter was trained on as `source`")
