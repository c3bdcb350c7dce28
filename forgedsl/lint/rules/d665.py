"""D665 absent-column: a dataset reads a column that no row of its local file has.

    source = jsonl("sums.jsonl")                     # {"question": "1+2=", "answer": "3"}
    prompt = row.qestion                             # fires
    prompt = row.question                            # silent
    prompt = first(row.problem, row.question)        # silent: the first that a row has

A row without the column is left out, and if more than `max_bad_rows` are (default 5 %), the run
ends. The rule reads 20 rows each at the beginning, in the middle and at the end of a local `jsonl`
file, the first ones of a `csv` file, and a short `json` file; it fires if none of them has the
column. `forgec lint --deep` reads all rows, also those of parquet files and of the hub's cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Edit, Fix
from forgedsl.ir.program import Constructor, Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import rows_of
from forgedsl.lint.sources import needed_columns, parts
from forgedsl.lint.view import View
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.source import Span

finding = rule(__doc__, "E")
FORMS = ("jsonl", "json", "csv")
SHOWN = 8
"""columns named in a message"""


def check(view: View) -> Findings:
    read: dict[tuple[str, Span], dict[str, tuple[str, ...]]] = {}
    for dataset, source in _read(view):
        known = _columns(view, source)
        for column, span in needed_columns(dataset) if known else ():
            read.setdefault((column, span), {})[str(source.args["path"])] = known
    for (column, span), files in read.items():
        lacking = [path for path, known in files.items() if column not in known]
        if lacking:
            columns = tuple(f"{path} has {_listed(known)}" for path, known in files.items())
            help_ = _help(column, files, [files[path] for path in lacking])
            yield finding(
                f"rows of {' and of '.join(lacking)} have no column `{column}`",
                span,
                notes=columns if len(files) > 1 or not help_.startswith("read") else (),
                help=help_,
                fix=_fix(column, span, files),
            )


def _fix(column: str, span: Span, files: dict[str, tuple[str, ...]]) -> Fix | None:
    """Return the replacement of `row.COLUMN` by the nearest column that all files have."""
    shared = [name for name in next(iter(files.values())) if all(name in f for f in files.values())]
    close = nearest(column, shared)
    written = f"row.{column}"
    if len(close) != 1 or not close[0].isidentifier() or span.end - span.start != len(written):
        return None
    edit = Edit(text=f"row.{close[0]}", span=span)
    return Fix(message=f"replace `{written}` by `row.{close[0]}`", edits=(edit,), safe=False)


def _help(column: str, files: dict[str, tuple[str, ...]], lacking: list[tuple[str, ...]]) -> str:
    close = nearest(column, [name for known in lacking for name in known])
    shared = tuple(name for name in lacking[0] if all(name in known for known in lacking))
    if len(lacking) < len(files):
        other = close[0] if close else "OTHER"
        return f"`first(row.{column}, row.{other})` reads whichever of the two a row has"
    if close:
        return did_you_mean(close)
    if not shared:
        return "`first(row.NAME, row.OTHER)` reads whichever of the two a row has"
    return f"read a column that {'it has' if len(lacking) == 1 else 'all have'}: {_listed(shared)}"


def _listed(columns: tuple[str, ...]) -> str:
    shown = ", ".join(f"`row.{name}`" for name in columns[:SHOWN])
    return f"{shown}, ..." if len(columns) > SHOWN else shown


def _read(view: View) -> Iterator[tuple[Decl, Constructor]]:
    """Yield each dataset with each local file of its rows, and of evals on it. Where every row may
    be bad, columns may be absent."""
    datasets = view.program.datasets
    read = [(d, d.settings["source"].value) for d in datasets.values()]
    for decl in view.program.evals.values():
        dataset = datasets.get(getattr(decl.settings["dataset"].value, "name", ""))
        if dataset is not None:
            read.append((dataset, decl.settings["source"].value))
    for dataset, source in read:
        if dataset.settings["max_bad_rows"].value < 1:
            yield from ((dataset, part) for part in parts(source) if part.name in FORMS)


def _columns(view: View, source: Constructor) -> tuple[str, ...]:
    """Return the columns of the rows that are read of a file; none if it cannot be read here.
    Cached for all views."""
    key = (_columns, source.name, source.args["path"])
    if key not in view.shared.answers:
        rows = rows_of(view, source)
        view.shared.answers[key] = tuple(dict.fromkeys(name for row in rows for name in row))
    found: tuple[str, ...] = view.shared.answers[key]
    return found
