"""D666 absent-task: a row names a file or folder that is not there.

    environment desk = program(["python", "solve.py", "tasks/{target}"]) { deadline = 60s }
    {"question": "...", "task": "fix-tset"}      # fires, with `target = row.task`: tasks/fix-tset
    {"question": "...", "task": "fix-test"}      # silent: the folder tasks has it

A program that gets `tasks/{target}` works in the folder that the target of its row names. If there
is none, the trajectories of this row fail. The rule reads 20 rows each at the beginning, in the
middle and at the end of a local `jsonl` file, the first ones of a `csv` file, and a short `json`
file, where the target is a column.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.program import Constructor, Decl, Deferred, EnvironmentDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import played_in, value_at
from forgedsl.lint.some_rows import some_rows
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.shipped import locate
from forgedsl.syntax.walk import reads

finding = rule(__doc__, "E")
FORMS = ("jsonl", "json", "csv")


def check(view: View) -> Findings:
    told: set[tuple[str, str]] = set()
    for env, dataset, source in _played(view):
        place = _place(env)
        if place and view.folder is not None and view.shared.on_disk:
            folder = locate(place, view.folder)
            known = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
            for path, target in _targets(view, dataset, source) if known else ():
                if target not in known and (place, path) not in told:
                    told.add((place, path))
                    near = did_you_mean(nearest(target, known))
                    yield finding(
                        f"`{place}` has no file or folder `{target}`, the target of a row of "
                        f"{path}",
                        dataset.settings["target"].origin.span or dataset.span,
                        help=near or f"it has {', '.join(known[:8])}",
                    )


def _place(env: EnvironmentDecl) -> str:
    """Return the folder in which a program looks up the target of a row, or ""."""
    from forgedsl.hir.programs import TARGET, target_folder

    words = env.body.args["command"] if env.body.is_program else ()
    return next((target_folder(word) for word in words if word.endswith(f"/{TARGET}")), "")


def _played(view: View) -> Iterator[tuple[EnvironmentDecl, Decl, object]]:
    """Yield each environment with a dataset that is played in it, and the source of its rows."""
    for step in view.program.flow:
        env, dataset = played_in(view, step)
        if env is not None and dataset is not None:
            yield env, dataset, dataset.settings["source"].value
    for decl in view.program.evals.values():
        ref, name = decl.settings["env"].value, decl.settings["dataset"].value
        env = view.program.environments.get(getattr(ref, "name", ""))
        dataset = view.program.datasets.get(getattr(name, "name", ""))
        if env is not None and dataset is not None:
            yield env, dataset, decl.settings["source"].value


def _targets(view: View, dataset: Decl, source: object) -> Iterator[tuple[str, str]]:
    """Yield (path, target) of the rows that are read, where the target is a column."""
    value = dataset.settings["target"].value
    assert view.folder is not None
    if not isinstance(value, Deferred):
        return
    keys = next((keys for keys, node in reads(value.expr, "row") if node is value.expr), None)
    for part in parts(source) if keys is not None else ():
        if part.name in FORMS:
            path = str(part.args["path"])
            for row in _rows(view, part):
                target = value_at(row, keys or ())
                if isinstance(target, str):
                    yield path, target


def _rows(view: View, part: Constructor) -> list[dict[str, object]]:
    assert view.folder is not None
    try:
        return some_rows(locate(str(part.args["path"]), view.folder), part.name)
    except (OSError, ValueError):
        return []  # P210 and --deep say why
