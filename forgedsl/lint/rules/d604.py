"""D604 eval-overlap: an evaluation on rows the policy is trained on.

    eval held_out { dataset = gsm8k, score = correct, every = 50 }     # fires: same rows
    source = hf("openai/gsm8k", split = "train[:80%]") of the dataset
    split  = "train[70%:]" of the eval                                 # fires: a tenth is shared
    split  = "train[80%:]" of the eval                                 # silent
    source = reasoning_gym("gcd", size = 5000, seed = 1) of the dataset
    source = reasoning_gym("gcd", size = 300, seed = 2) of the eval    # fires: 299 shared

The evaluation then measures memory, not ability. Rows are compared by source, whatever the dataset
is called, also in mixtures and across revisions (TTRL #51, parameter-golf #2127). Row i of
reasoning-gym is made with the seed `seed` + i. Give the eval another `split` or another `source`.
"""

import re
from collections.abc import Iterator
from posixpath import normpath
from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Decl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.splits import SLICE
from forgedsl.lint.view import View
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.types.flow import Role

finding = rule(__doc__, "E")
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
