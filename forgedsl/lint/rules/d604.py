"""D604 eval-overlap: an evaluation on rows the policy is trained on.

    eval held_out { dataset = gsm8k, score = correct, every = 50 }     # fires: same rows
    source = hf("openai/gsm8k", split = "train[:80%]") of the dataset
    split  = "train[70%:]" of the eval                                 # fires: a tenth is shared
    split  = "train[80%:]" of the eval                                 # silent
    source = jsonl("test.jsonl") of the eval     # fires: it has the questions of train.jsonl
    source = reasoning_gym("gcd", size = 5000, seed = 1) of the dataset
    source = reasoning_gym("gcd", size = 300, seed = 2) of the eval    # fires: 299 shared

The evaluation then measures memory, not ability. Rows are compared by source, whatever the dataset
is called, also in mixtures and across revisions (TTRL #51, parameter-golf #2127). Row i of
reasoning-gym is made with the seed `seed` + i. Of local files the rule reads some rows: prompts are
the same if only case, spaces or punctuation differ; `lint --deep` reads all rows. Give the eval
another `split` or another `source`.
"""

import re
from collections.abc import Iterator
from posixpath import normpath
from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import rows_of, value_at
from forgedsl.lint.sources import parts
from forgedsl.lint.splits import SLICE
from forgedsl.lint.view import View
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.syntax.walk import reads
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")
FEWEST, SHARED, SHORTEST = 3, 0.1, 8
"""rows, and share of the rows read, that an eval has from the training; shorter prompts, as
those of games, are left out"""
Rows = tuple[str, str, float, float]
"""a range of rows: source, unit of the bounds, first, last"""


def check(view: View) -> Findings:
    program = view.program
    drawn = (s.receiver for s in program.flow if Role.SOURCE in s.roles)
    trained = [program.datasets[name] for name in dict.fromkeys(drawn)]
    for evaluation in program.evals.values():
        dataset = program.datasets[evaluation.settings["dataset"].value.name]
        own, split = (evaluation.settings[key].value for key in ("source", "split"))
        source = own or dataset.settings["source"].value
        if split is not None and getattr(source, "name", "") != "hf" and own is None:
            continue  # an invalid split is P212
        rows = list(_rows(source, None if own else split))
        for other in trained:
            theirs = list(_rows(other.settings["source"].value, None))
            if any(_meet(one, another) for one in rows for another in theirs):
                yield finding(
                    f"`{evaluation.name}` evaluates on the rows `{other.name}` trains on",
                    evaluation.name_span,
                    related=(Label(text="trained on", span=other.name_span),),
                    help=_other_rows(source, other),
                )
                break
            shared = _shared_rows(view, dataset, source, other)
            if shared:
                yield finding(
                    f"at least {shared} rows of `{evaluation.name}` ask what `{other.name}` "
                    "trains on, in other case or punctuation",
                    evaluation.name_span,
                    related=(Label(text="trained on", span=other.name_span),),
                    help=_other_rows(source, other),
                )
                break


def _shared_rows(view: View, dataset: Decl, source: Any, other: Decl) -> int:
    """Return how many rows of an eval have the prompt of a training row, apart from case and
    punctuation; 0 if they are few."""
    mine, theirs = (
        _prompts(view, dataset, source),
        _prompts(view, other, other.settings["source"].value),
    )
    both = [text for text in mine if text in theirs]
    return len(both) if len(both) >= max(FEWEST, SHARED * len(mine)) else 0


def _prompts(view: View, dataset: Decl, source: Any) -> list[str]:
    """Return what the prompts of some rows of local files are made of: letters and digits of the
    columns. Nothing if a row could have the same prompt as others."""
    value = dataset.settings["prompt"].value
    if not isinstance(value, Deferred):
        return []
    key = (_prompts, value.expr.span, repr(source))
    if key not in view.shared.answers:
        view.shared.answers[key] = _texts(view, value, source)
    found: list[str] = view.shared.answers[key]
    return found


def _texts(view: View, value: Deferred, source: Any) -> list[str]:
    columns = [keys for keys, _ in reads(value.expr, "row") if keys]
    found = []
    for part in parts(source) if columns else ():
        for row in rows_of(view, part):
            text = " ".join(str(value_at(row, keys)) for keys in columns).lower()
            found.append(re.sub(r"[\W_]+", " ", text).strip())
    found = [text for text in found if len(text) >= SHORTEST]
    return found if len({*found}) > len(found) / 2 else []


def _other_rows(source: Any, trained: Decl) -> str:
    """Return the help that says which rows to take instead."""
    name = getattr(source, "name", "")
    theirs = trained.settings["source"].value
    if name == "hf":
        return '`split = "test"`, or a `source` of its own'
    if name == REASONING_GYM.name == getattr(theirs, "name", ""):
        free = theirs.args["seed"] + theirs.args["size"]
        return f"row i is made with the seed `seed` + i, so write `seed = {free}` or more"
    return "give the eval a `source` of other rows"


def _rows(source: Any, split: str | None) -> Iterator[Rows]:
    if not isinstance(source, Constructor):
        return
    args = source.args
    for part in args.get("sources", ()):
        yield from _rows(part, split)
    if "path" in args:
        yield normpath(str(args["path"])), "", 0.0, float("inf")
    elif source.name == REASONING_GYM.name:  # row i is made with the seed `seed` + i
        made = f"{args['task']} {sorted(args['options'].items())}"
        yield made, "", float(args["seed"]), float(args["seed"] + args["size"])
    elif "id" in args:
        name = str(split or args.get("split") or "train")
        found = re.search(SLICE, name) if "[" in name else None
        first, unit, last, other = found.groups() if found else ("", "", "", "")
        whose = f"{args['id']} {args.get('config')} {name.partition('[')[0]}"
        yield whose, unit or other, float(first or 0), float(last or "inf")


def _meet(a: Rows, b: Rows) -> bool:
    if a[0] != b[0] or (a[1] != b[1] and float("inf") not in (a[3], b[3])):
        return False
    return a[2] < b[3] and b[2] < a[3]
