"""Recognises Python syntax at the place of a syntax error.

    text.split("#")[0]   gain.sum()   for x in y   from std import rl   report token_mean(x, mask)

`FOREIGN` is a part of `common.COMMON_MISTAKES`. Each function examines the place and returns a
diagnostic or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from forgedsl.diagnostics import Diagnostic, Edit, Fix
from forgedsl.mistakes.error_context import WINDOW, Place
from forgedsl.mistakes.tensor_calls import method_help
from forgedsl.source import Span

_STATEMENTS = ("minimize", "report", "return", "require", "sync", "import", "param")
_PYTHON = re.compile(
    r"\s*(for|while|if|elif|def|class|assert|print|let|var|const|function|from|with(?=\s+\w))\b"
)
_ADVICE = {
    "for": "there are no loops: a flow lists each edge once, and reductions go over named axes",
    "while": "there are no loops: a flow lists each edge once",
    "if": "write a condition as an expression: `a if condition else b`",
    "elif": "write a condition as an expression: `a if condition else b`",
    "def": "to define a function, use `fn`, `reward`, `advantage`, `filter` or `loss`",
    "function": "to define a function, use `fn`, `reward`, `advantage`, `filter` or `loss`",
    "class": "declare a `model`, `dataset`, `service`, ...",
    "assert": "to check a condition, write `require group >= 2`",
    "print": "to log a value, use `report` in the loss; it becomes a column of metrics.jsonl",
    "with": "to stop a gradient, write `stop(x)` around the value",
    "from": 'import the whole module: `import "std/rl" as rl`',
}
_CALLS = {
    **{name: f"{name}(x, T, mask)" for name in ("sum", "mean", "std", "var", "min", "max")},
    **{name: f"{name}(x)" for name in ("abs", "exp", "log", "sqrt")},
    "clamp": "clamp(x, lo, hi)",
    "clip": "clip(x, lo, hi)",
    "detach": "stop(x)",
}
_NAMED_AXES = (
    "axes have names: values of different axes are broadcast by themselves, and functions such as "
    "`mean(x, T, mask)` name the axis they reduce"
)
_PARAMETERS = {
    "reward": "r: Rollout",
    "advantage": "r: [G] f32",
    "filter": "score: [G] f32",
    "loss": "mask: [B, T] bool",
    "fn": "x: [B, T] f32",
}


def _foreign_statement(place: Place) -> Diagnostic | None:
    """Recognise a line that begins with a statement of another language."""
    match = _PYTHON.match(place.before)
    if match is None:
        return None
    word = match[1]
    return place.error(
        "S027",
        "foreign-statement",
        f"there is no `{word}` statement",
        span=_in_line(place, match.start(1), match.end(1)),
        help=_ADVICE.get(word, "to name a value, write `name = expression`"),
    )


def _misspelt_statement(place: Place) -> Diagnostic | None:
    """Recognise a misspelt statement, such as `minimise token_mean(...)`: a word that is followed
    by neither `=` nor a block."""
    match = re.match(r"\s*([A-Za-z_]\w*)[ \t]+[\w(\"]", place.before + place.text)
    if (
        match is None
        or place.kind not in {"LPAR", "NAME", "STRING", "EQUAL", "ARROW"}
        or match[1] in _STATEMENTS
    ):
        return None
    from difflib import get_close_matches

    close = get_close_matches(match[1], _STATEMENTS, n=1, cutoff=0.75)
    if not close:
        return None
    span = _in_line(place, match.start(1), match.end(1))
    edit = Edit(text=close[0], span=span)
    return place.error(
        "S001",
        "unexpected-token",
        f"there is no `{match[1]}` statement",
        span=span,
        help=f"did you mean `{close[0]}`?",
        fix=Fix(message=f"replace `{match[1]}` by `{close[0]}`", edits=(edit,), safe=False),
    )


def _report_without_name(place: Place) -> Diagnostic | None:
    match = re.match(r"\s*report\s+(\w+)\s*$", place.before)
    if match is None or place.kind != "LPAR":
        return None
    return place.error(
        "S001",
        "unexpected-token",
        "a report needs a name",
        span=_in_line(place, match.start(1), match.end(1)),
        help=f"`report NAME = {match[1]}(...)`; the name is a column of metrics.jsonl",
    )


def _parameter_without_type(place: Place) -> Diagnostic | None:
    match = re.match(r"\s*(reward|advantage|filter|loss|fn)\s+\w+\s*\((?:.*,)?\s*(\w+)\s*$",
                     place.before)  # fmt: skip
    if match is None or "COLON" not in place.expected:
        return None
    article = "an" if match[1] == "advantage" else "a"
    return place.error(
        "S025",
        "parameter-without-type",
        f"parameter `{match[2]}` has no type",
        span=_in_line(place, match.start(2), match.end(2)),
        help=f"write a parameter of {article} {match[1]} as `{_PARAMETERS[match[1]]}`",
    )


def _index(place: Place) -> Diagnostic | None:
    """`row.answer.split("#")[0]`, `row.tags[0:2]`."""
    if place.text == ":" and re.search(r"\w\[[^\]]*$", place.before):
        rest = re.match(r"[^\]\n]*", place.source.text[place.start :][:WINDOW])
        inside = place.before.rpartition("[")[2] + (rest[0] if rest else "")
        return place.error(
            "S001", "unexpected-token", "there are no slices: an index selects one entry",
            help=_NAMED_AXES if "," in inside or "None" in inside else "",
        )  # fmt: skip
    if place.text != "[" or not re.search(r"[\w)\]\"]$", place.before):
        return None
    split = re.search(r"\.split\((.*)\)$", place.before)
    help_text = "only rows, columns and their parts can be indexed: `row.messages[0].content`"
    if split and split[1]:
        help_text = f"`after(text, {split[1]})` returns the text after it"
    return place.error("S001", "unexpected-token", "this cannot be indexed", help=help_text)


def _chained_call(place: Place) -> Diagnostic | None:
    """`f(x).g()`; `(a * b).sum()` is a function here."""
    if place.kind not in {"DOT", "LPAR"} or not place.before.rstrip().endswith(")"):
        return None
    help_text = "name the first result, then call a method of that name: every edge needs a name"
    method = re.match(r"\.\s*(\w+)", place.source.text[place.start :][:WINDOW])
    if method is not None and (call := _CALLS.get(method[1])):
        help_text = f"numbers have functions, not methods: `{call}`"
    elif method is not None:
        help_text = method_help(method[1], "x") or help_text
    return place.error("S023", "chained-call", "calls cannot be chained", help=help_text)


def _comparison_as_assignment(place: Place) -> Diagnostic | None:
    """`batch == replay(...)` at the start of a line."""
    if place.text != "=" or not re.fullmatch(r"\s*[\w.]+\s*=", place.before):
        return None
    first = Span(place.source.name, place.start - 1, place.end)
    return place.error(
        "S001",
        "unexpected-token",
        "to assign a value, use one `=`; `==` compares",
        span=first,
        fix=Fix(message="replace `==` by `=`", edits=(Edit(text="=", span=first),)),
    )


def _in_line(place: Place, start: int, end: int) -> Span:
    """Return the span of a part of `place.before`."""
    line = place.start - len(place.before)
    return Span(place.source.name, line + start, line + end)


def _name_with_hyphen(place: Place) -> Diagnostic | None:
    """`reward my-judge = ...`."""
    match = re.fullmatch(r"\s*[a-z]+\s+(\w+)", place.before)
    rest = re.match(r"-(\w+)", place.source.text[place.start :][:WINDOW])
    if place.text != "-" or match is None or rest is None:
        return None
    span = _in_line(place, match.start(1), match.end(1)).to(place.span)
    name = f"{match[1]}_{rest[1]}"
    span = Span(span.file, span.start, span.end + len(rest[1]))
    return place.error("S001", "unexpected-token", "a name cannot contain a hyphen", span=span,
                       help=f"`{name}`")  # fmt: skip


def _list_without_brackets(place: Place) -> Diagnostic | None:
    """`colocate = trainer, generator`."""
    match = re.fullmatch(r"(\w+)\s*=\s*([\w.\"]+)\s*", place.before)
    if place.text != "," or match is None:
        return None
    shown = f"`{match[1]} = [{match[2]}, ...]`"
    return place.error("S001", "unexpected-token", "only one value can follow `=`",
                       help=f"write a list in brackets: {shown}")  # fmt: skip


def _import_without_quotes(place: Place) -> Diagnostic | None:
    """`import rew`, `import python rew`, `import std/rl`."""
    match = re.match(r"\s*import\s+(python\s+)?$", place.before)
    if match is None or place.kind != "NAME":
        return None
    path = re.match(r"[\w./-]+", place.source.text[place.start : place.start + WINDOW])
    target = path[0] if path is not None else place.text
    name = re.split(r"[./]", target.removesuffix(".forge").removesuffix(".py"))[-1] or place.text
    help_text = f'`import python "{name}.py" as {name}`'
    if "/" in target:
        kind = "python " if target.endswith(".py") else ""
        help_text = f'`import {kind}"{target.removesuffix(".forge")}" as {name}`'
    elif not match[1]:
        help_text += f', or `import "{name}" as {name}` of a .forge file'
    return place.error(
        "S001", "unexpected-token", "import a file by its path, as a string", help=help_text
    )


def _membership(place: Place) -> Diagnostic | None:
    """`r.target in r.response`."""
    if place.text != "in" or place.kind != "NAME":
        return None
    help_text = (
        'to find a pattern, write `matches(r.response, "a|b")`; for anything else, write '
        "a Python reward"
    )
    return place.error("S001", "unexpected-token", "there is no `in`", help=help_text)


def _range(place: Place) -> Diagnostic | None:
    """`1e-6 .. 3e-6`."""
    text = place.source.text
    at = place.start - 1 if text[place.start - 1 : place.start + 1] == ".." else place.start
    if place.text != "." or not text.startswith("..", at):
        return None
    help_text = (
        "write a list, `[1, 2, 3]`; bounds are two comparisons, `require x >= 1`; values of a "
        "sweep are in its command: `forgec sweep FILE x=1,2,3`"
    )
    span = Span(place.source.name, at, at + 2)
    return place.error("S001", "unexpected-token", "there is no `..`", span=span, help=help_text)


def _augmented(place: Place) -> Diagnostic | None:
    """`ratio += 1`."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*", place.before)
    if match is None or not re.match(r"(\*\*|//|[-+*/%])=", place.source.text[place.start :][:3]):
        return None
    shown = f"`{match[1]}2 = {match[1]} {place.text} ...`"
    message = "a name can be assigned only once"
    return place.error("S001", "unexpected-token", message, help=f"use another name: {shown}")


def _type_without_dtype(place: Place) -> Diagnostic | None:
    """`loss l(logprob: [B, T], mask: [B, T]) { ... }`."""
    match = re.search(r"(\w+)\s*:\s*(?:diff\s+)?(\[[\w, ]*\])\s*$", place.before)
    if match is None or place.kind not in {"COMMA", "RPAR"}:
        return None
    held = "bool" if match[1] == "mask" else "f32"
    message = f"the type of `{match[1]}` is incomplete"
    help_text = f"`{match[1]}: {match[2]} {held}`"
    return place.error("S001", "unexpected-token", message, help=help_text)


def _value_alone(place: Place) -> Diagnostic | None:
    """Recognise a value without `return` in the last line of a block."""
    literal = place.kind in {"INT", "NUMBER", "STRING", "TRUE", "FALSE", "QUANTITY"}
    if place.before.strip() or not literal or "NAME" not in place.expected:
        return None
    return place.error(
        "S001", "unexpected-token", "this value is not used", help="end the block with `return`"
    )


def _formatted_string(place: Place) -> Diagnostic | None:
    """`f"Q: {row.question}"`, `"Q: {}".format(row.question)`."""
    help_text = (
        'to join texts, use `+`: `"Q: " + row.question`; convert numbers with `text(row.id)`'
    )
    if place.text == "." and place.before.endswith('"'):
        return place.error("S001", "unexpected-token", "text has no methods", help=help_text)
    if place.kind not in {"STRING", "TEXT"} or not re.search(r"(?<!\w)f$", place.before):
        return None
    span = Span(place.source.name, place.start - 1, place.end)
    return place.error(
        "S001", "unexpected-token", "there are no f-strings", span=span, help=help_text
    )


FOREIGN: tuple[Callable[[Place], Diagnostic | None], ...] = (
    _index,
    _chained_call,
    _foreign_statement,
    _report_without_name,
    _misspelt_statement,
    _parameter_without_type,
    _comparison_as_assignment,
    _formatted_string,
    _import_without_quotes,
    _name_with_hyphen,
    _list_without_brackets,
    _membership,
    _range,
    _augmented,
    _type_without_dtype,
    _value_alone,
)
