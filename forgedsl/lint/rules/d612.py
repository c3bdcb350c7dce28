"""D612 few-rows: fewer rows than a step draws, or than the steps need.

    dataset aime { source = hf("HuggingFaceH4/aime_2024", split = "train"), ... }    # 30 problems
    prompt = aime.draw(64)                               # fires: some come three times in a step
    schedule sync { steps = 500 }                        # fires with draw(8): each comes 133 times
    schedule sync { steps = 500, epochs = 134 }          # silent: the repetition is declared
    schedule sync { steps = 500, epochs = 1 }            # fires: the rows are used up after 3 steps

Rows that are repeated often are memorized (tinker-cookbook #336). With `epochs`, a run ends when
its rows are used up, and never reaches the evaluations and the learning rate of its last steps. Add
rows, draw fewer, or state the passes with `epochs`. The rule counts the lines of local .jsonl
files, the rows that a slice of a split can hold and the `size` of reasoning-gym; `--deep` also
counts other local data, without unusable rows. Without `epochs` it fires above 50 passes if the
policy samples new completions, and above 20 if it learns the rows themselves.
"""

from __future__ import annotations

import codecs
import math
import re
from itertools import islice
from typing import Any

from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.splits import SLICE
from forgedsl.lint.view import View, place
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.shipped import locate
from forgedsl.source import Span
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
PROMPT_EPOCHS, PAIR_EPOCHS = 50, 20
PUBLISHED = {
    "openai/gsm8k train": 7473, "openai/gsm8k test": 1319, "HuggingFaceH4/MATH-500 test": 500,
    "HuggingFaceH4/aime_2024 train": 30, "openai/openai_humaneval test": 164,
}  # fmt: skip
"""number of rows of published splits, from their dataset cards"""


def check(view: View) -> Findings:
    schedule = view.program.schedule
    if schedule is None:
        return
    steps, epochs = (schedule.settings[key].value for key in ("steps", "epochs"))
    drawn = [s for s in view.program.flow if s.roles & {Role.PROMPTS, Role.PAIRS}]
    for name in dict.fromkeys(s.receiver for s in drawn):
        mine = [s for s in drawn if s.receiver == name]
        count = sum(s.settings["count"].value for s in mine)
        most = min(PROMPT_EPOCHS if Role.PROMPTS in s.roles else PAIR_EPOCHS for s in mine)
        need = max(count, math.ceil(count * (steps or 0) / (epochs or most)))
        dataset = view.program.datasets[name]
        source = dataset.settings["source"]
        rows = rows_of(view, source.value, need)
        if not rows or rows >= need:  # D611 reports an empty file
            continue
        if rows < count:
            yield finding(
                f"dataset {name}: {few(count, rows)}",
                place(source, dataset),
                help="draw fewer, or add rows",
            )
        elif epochs is not None:
            written = [schedule.settings[key].origin.span for key in ("steps", "epochs")]
            if not all(span is not None and _within(span, schedule.span) for span in written):
                # if a profile sets one of `steps` and `epochs`, the run ends at whichever comes
                # first
                continue
            last = int(epochs * rows) // count
            yield finding(
                f"the {rows:,} rows of `{name}` are used up after {last:,} of {steps:,} steps",
                place(schedule.settings["steps"], schedule),
                help=f"`epochs = {math.ceil(steps * count / rows)}`, or fewer steps",
            )
        else:
            passes = steps * count / rows
            yield finding(
                f"{steps:,} steps need {steps * count:,} rows, and `{name}` has {rows:,}: each "
                f"comes {passes:.0f} times",
                place(source, dataset),
                help=f"if this is intended, set `epochs = {math.ceil(passes)}` in the schedule",
            )


def _within(span: Span, whole: Span) -> bool:
    return span.file == whole.file and whole.start <= span.start and span.end <= whole.end


def few(count: int, rows: int) -> str:
    return (
        f"a step draws {count} rows, but only {rows} {'is' if rows == 1 else 'are'} usable, so "
        "some rows occur several times in one step"
    )


def rows_of(view: View, source: Any, need: int) -> int | None:
    """Count the rows of a source, up to `need`; None if the number is unknown here."""
    if not isinstance(source, Constructor):
        return None
    args = source.args
    if "sources" in args:
        parts = [rows_of(view, part, need) for part in args["sources"]]
        return None if None in parts else sum(part or 0 for part in parts)
    if source.name == REASONING_GYM.name:
        return int(args["size"])
    if source.name == "jsonl":
        return _lines(view, str(args["path"]), need)
    if "id" not in args:
        return None
    split = str(args.get("split") or "train")
    known = PUBLISHED.get(f"{args['id']} {split.partition('[')[0]}")
    found = re.search(SLICE, split)
    if found is None:
        return known
    first, percent, last, other = found.groups()
    if percent or other:
        part = (float(last or 100) - float(first or 0)) / 100
        return None if known is None else round(part * known)
    ends = [end for end in (known, int(last) if last else None) if end is not None]
    return max(0, min(ends) - int(first or 0)) if ends else None


def _lines(view: View, path: str, need: int) -> int | None:
    """Count the non-empty lines of a file; cached for all views. None if the first line is not the
    beginning of an object: lines of a JSON list or of a compressed file are not rows."""
    if view.folder is None or not view.shared.on_disk:
        return None
    key = ("lines", path, need)
    if key not in view.shared.answers:
        try:
            with locate(path, view.folder).open("rb") as file:
                full = filter(bytes.strip, file)
                first = next(full, b"{").removeprefix(codecs.BOM_UTF8)
                file.seek(0)
                lines = sum(1 for _ in islice(full, need)) if first.lstrip()[:1] == b"{" else None
        except OSError:
            lines = None  # a missing file is P210
        view.shared.answers[key] = lines
    found: int | None = view.shared.answers[key]
    return found
