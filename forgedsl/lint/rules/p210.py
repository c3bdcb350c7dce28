"""P210 missing-file: a model, a dataset, a tokenizer or a reward names a path that does not exist.

    dataset sums { source = jsonl("data/sums.jsonl"), ... }       # fires: no such file
    dataset sums { source = hf("openai/gsm8k", split = "train"), ... }     # silent
    model policy { source = local("runs/first") }                 # fires: a run is no model

Paths are relative to the .forge file; `forgedsl:NAME` names a file that ships with the package.
Several files in a folder that is missing are one finding. `plan`, `run` and `lint --deep` stop with
an error. Plain lint only warns, because the data is often on another machine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.shipped import locate

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if view.folder is None or not view.shared.on_disk:
        return
    program = view.program
    named = [
        (str(source.args["path"]), source.span)
        for decl in (*program.models.values(), *program.datasets.values(), *program.evals.values())
        for setting in decl.settings.values()
        for source in _local(setting.value)
    ]
    for reward in program.rewards.values():
        files = reward.settings["files"]
        named += [(path, files.origin.span or reward.span) for path in files.value]
    for written, span in named:
        path = locate(written, view.folder)
        if not path.exists():
            from forgedsl.lower.paths import missing_file_help

            message = f"there is no `{written}` beside this file"
            yield finding(message, span, help=missing_file_help(path, written))
    for model in program.models.values():
        yield from _runs(model.settings["source"].value, view.folder)


def _runs(source: Any, folder: Path) -> Findings:
    """Yield a finding if a model is a run folder, in place of what the run has exported."""
    if isinstance(source, Constructor) and source.name == "local":
        from forgedsl.lower.paths import run_instead

        written = str(source.args["path"])
        found = run_instead(locate(written, folder), written)
        if found is not None:
            yield finding(found[0], source.span, help=found[1])


def _local(value: Any) -> Iterator[Constructor]:
    """Yield the constructors in a value that name a path."""
    if isinstance(value, Constructor):
        if "path" in value.args:
            yield value
        for argument in value.args.values():
            yield from _local(argument)
    elif isinstance(value, list):
        for item in value:
            yield from _local(item)
