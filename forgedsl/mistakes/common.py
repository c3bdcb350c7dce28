"""Recognises common typing mistakes at the place of a syntax error.

The functions in `COMMON_MISTAKES` are tried in order. Each examines the place and returns a
diagnostic or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label
from forgedsl.mistakes.error_context import (
    PAIRS,
    WINDOW,
    Place,
    comment_start,
    describe,
    open_bracket,
)
from forgedsl.mistakes.python_syntax import FOREIGN
from forgedsl.source import Span
from forgedsl.units import COUNTED, OTHER_UNITS, UNITS

_CHARACTERS = {
    "'": ("strings are written in double quotes", '"'),
    ";": ("remove `;`: a statement ends with its line", ""),
    "&": ("write `and`", "and"),
    "|": ("write `or`", "or"),
    "!": ("write `not`", "not"),
    "\u201c": ('this is a typographic quote; strings use `"`', '"'),
    "\u201d": ('this is a typographic quote; strings use `"`', '"'),
    "\u2018": ('this is a typographic quote; strings use `"`', '"'),
    "\u2019": ('this is a typographic quote; strings use `"`', '"'),
    "\u2013": ("this is an en dash; minus is `-`", "-"),
    "\u2212": ("this is a typographic minus sign; write `-`", "-"),
    "\u00a0": ("this is a no-break space", " "),
    "^": ("a power is written `**`", "**"),
    "\\": ("remove `\\`; to continue a statement on the next line, put it in parentheses", ""),
}
_COLUMNS = ("prompt", "target", "chat", "chosen", "rejected")
_QUOTES = {
    "'": "'", "\u201c": "\u201d\u201c", "\u201d": "\u201d", "\u2018": "\u2019\u2018",
    "\u2019": "\u2019",
}  # fmt: skip
"""opening quotes of other languages -> what may close them"""
_OPERATORS = {"SUM", "PROD", "CMP", "AND", "OR", "POW", "IF", "DOT"}


def _open_string(place: Place) -> Diagnostic | None:
    if place.kind or place.text != '"':
        return None
    text = place.source.text
    if text.startswith('"""', place.start):
        span = Span(place.source.name, place.start, place.start + 3)
        message = "this text is never closed"
        return place.error(
            "S004", "unclosed-string", message, span=span, help='close it with `"""`'
        )
    end = text.find("\n", place.start)
    end = len(text.rstrip()) if end < 0 else end
    return place.error(
        "S004",
        "unclosed-string",
        "this string is never closed",
        span=Span(place.source.name, place.start, max(end, place.start + 1)),
        help='close it with `"`; for text over several lines use `"""`',
    )


def _character(place: Place) -> Diagnostic | None:
    if place.kind:
        return None
    if place.text in _CHARACTERS:
        help_text, replacement = _CHARACTERS[place.text]
        return place.error(
            "S002",
            "unexpected-character",
            f"unexpected character {_show(place.text)}",
            help=help_text,
            fix=_requoted(place, help_text)
            if place.text in _QUOTES
            else _without_semicolon(place)
            if place.text == ";"
            else place.replace_by(replacement, help_text)
            if replacement
            else None,
        )
    help_text = "names consist of a-z, A-Z, 0-9 and `_`; text needs quotes"
    return place.error(
        "S002", "unexpected-character", f"unexpected character {_show(place.text)}",
        help=help_text if place.text.isalpha() else "",
    )  # fmt: skip


def _without_semicolon(place: Place) -> Fix | None:
    """Remove a `;`; one between two statements becomes a comma in brackets, else a new line."""
    rest = place.source.text[place.end :].partition("\n")[0].strip()
    if not rest or rest[0] in "#}":
        return place.replace_by("", "remove `;`")
    opened = open_bracket(place)
    line = place.start - len(place.before)
    gap = len(place.source.text[place.end :]) - len(place.source.text[place.end :].lstrip(" \t"))
    span = Span(place.source.name, place.start, place.end + gap)
    if opened is not None and opened[0] >= line:
        edit, message = Edit(text=", ", span=span), "replace `;` by `,`"
    else:
        indent = re.match(r"[ \t]*", place.before)
        assert indent is not None
        edit, message = Edit(text=f"\n{indent[0]}", span=span), "begin a new line after it"
    return Fix(message=message, edits=(edit,))


def _requoted(place: Place, message: str) -> Fix | None:
    """Return the edits that replace both quotes of a string; replacing one would leave it
    unclosed."""
    closing = _QUOTES[place.text]
    rest = place.source.text[place.end :].partition("\n")[0]
    match = re.match(rf'[^"\\{closing}]*(?=["{closing}])', rest)
    if match is None:
        return None
    end = place.end + len(match[0])
    ends = (place.span, Span(place.source.name, end, end + 1))
    return Fix(message=message, edits=tuple(Edit(text='"', span=span) for span in ends))


def _show(char: str) -> str:
    return f"`{char}`" if char.isprintable() and char != "`" else f"U+{ord(char):04X}"


def _missing_value(place: Place) -> Diagnostic | None:
    if place.kind not in {"_NL", "RBRACE", "COMMA", "RPAR", "$END"}:
        return None
    at = place.previous
    first = max(0, at - WINDOW)
    text = place.source.text[first:at]
    match = re.search(
        r"([\w.]+)(?:\s*:\s*\w+(?:\[[^=\n]*\])?)?\s*=$|(?<![=!<>])([-+*/%]|\*\*|==|!=|<=|>=|<|>|\b(?:and|or|not|minimize|return|require))$",
        text,
    )
    if match is None:
        return None
    span = Span(place.source.name, first + match.start(), at)
    if match[1]:
        message = f"the value of `{match[1]}` is missing"
        help_text = f"write `{match[0]} ...` on one line, or remove the line"
    else:
        message = f"nothing follows `{match[2]}`"
        help_text = "put an expression over several lines in parentheses"
    return place.error("S005", "value-missing", message, span=span, help=help_text)


def _operator_at_line_start(place: Place) -> Diagnostic | None:
    if place.kind not in _OPERATORS or place.before.strip():
        return None
    return place.error(
        "S010",
        "operator-at-line-start",
        f"a line cannot begin with `{place.text}`",
        help="a newline ends the statement; put the whole expression in parentheses",
        fix=_wrap_in_parentheses(place),
    )


def _wrap_in_parentheses(place: Place) -> Fix | None:
    """`x = a` NL `+ b` -> `x = (a` NL `+ b)`."""
    text = place.source.text
    end_above = place.previous
    start_above = text.rfind("\n", 0, end_above) + 1
    equals = re.compile(r"(?<![=!<>])=(?!=)\s*|\b(?:require|return|minimize)\s+").search(
        text, start_above, end_above
    )
    if equals is None:
        return None
    end = text.find("\n", place.start)
    end = len(text) if end < 0 else end
    comment = comment_start(text[place.start : end])
    end = place.start + len(text[place.start : place.start + comment if comment else end].rstrip())
    name = place.source.name
    edits = (
        Edit(text="(", span=Span(name, equals.end(), equals.end())),
        Edit(text=")", span=Span(name, end, end)),
    )
    return Fix(message="put the expression in parentheses", edits=edits)


def _assignment_as_comparison(place: Place) -> Diagnostic | None:
    if place.kind != "EQUAL" or "COLON" in place.expected:
        return None
    before = place.before
    if before.rstrip().endswith(("=", "!", "<", ">")):
        return None
    is_condition = re.search(r"\b(require|when|if|and|or|not)\b", before)
    if not is_condition and "=" not in before:
        return None
    return place.error(
        "S006",
        "assignment-as-comparison",
        "`=` assigns a value; it does not compare",
        help="to compare, write `==`"
        + ("" if is_condition else "; one statement gives a value to one name only"),
        fix=place.replace_by("==", "replace `=` by `==`") if is_condition else None,
    )


def _quantity_with_space(place: Place) -> Diagnostic | None:
    if place.kind != "NAME":
        return None
    match = re.search(r"(?<![\w.])([0-9][0-9_.]*(?:[eE][-+]?[0-9]+)?)([ \t]*)$", place.before)
    if match is None:
        return None
    span = Span(place.source.name, place.start - len(match[0]), place.end)
    if place.text in UNITS and "e" not in match[1].lower():
        fixed = match[1] + place.text
        edit = Edit(text=fixed, span=span)
        return place.error(
            "S007",
            "space-before-unit",
            "a number and its unit must be written without a space",
            span=span,
            help=f"write `{fixed}`",
            fix=Fix(message=f"write `{fixed}`", edits=(edit,)),
        )
    if match[2] and re.match(r"[\w.]*\s*[={]", place.source.text[place.start :][:WINDOW]):
        return None
    other = OTHER_UNITS.get(place.text.lower(), "")
    known = "units are " + " ".join(UNITS) + (" after plain digits" if place.text in UNITS else "")
    return place.error(
        "S007",
        "unknown-unit",
        f"`{match[0]}{place.text}` is neither a number nor a quantity",
        span=span,
        help="to set the number of hosts, write `cluster { hosts = ... }`"
        if place.text in ("hosts", "nodes")
        else f"write `{match[1]}{other}`: {known}"
        if other
        else f"a count has no unit: write `{match[1]}`; {known}"
        if place.text.lower().removesuffix("s") + "s" in COUNTED
        else known,
    )


BLOCKS = frozenset({
    "batch", "checkpoint", "cluster", "engine", "extra", "logging", "lora", "memory", "mlflow",
    "off", "optimizer", "parallel", "proofs", "record", "run", "sample", "sampling", "schedule",
    "trackio", "wandb",
})  # fmt: skip
"""names of settings written as a block, in all kinds of declarations"""


def _block_after_equals(place: Place) -> Diagnostic | None:
    match = re.search(r"([A-Za-z_]\w*)\s*=\s*$", place.before)
    if place.kind != "LBRACE" or match is None:
        return None
    if match[1] not in BLOCKS:
        help_text = f"`{match[1]}` takes one value; a block contains settings and is not a value"
        if match[1] in _COLUMNS:
            help_text = f"`{match[1]}` takes one value, `record(answer = row.a, tests = row.t)`"
        message = "a value cannot begin with `{`"
        return place.error("S021", "block-as-value", message, help=help_text)
    span = Span(place.source.name, place.start - len(match[0]) + len(match[1]), place.start)
    fix = Fix(message="remove the `=`", edits=(Edit(text=" ", span=span),))
    return place.error(
        "S021", "block-as-value", f"write `{match[1]} {{ ... }}` without `=`", fix=fix
    )


def _record_in_braces(place: Place) -> Diagnostic | None:
    """`[{"role": "user", "content": row.question}]`."""
    if place.kind != "LBRACE" or not re.search(r"[\[(,]\s*$", place.before):
        return None
    rest = place.source.text[place.start :][:WINDOW]
    role = re.match(r"""\{\s*["']?role["']?\s*[:=]""", rest)
    help_text = "for a record, write `record(answer = row.a, tests = row.t)`"
    if role:
        help_text = (
            "for messages, write `chat(user = row.question)`, `chat(system, user)` or "
            "`row.messages`"
        )
    return place.error("S021", "block-as-value", "a value cannot begin with `{`", help=help_text)


def _block_of_a_path(place: Place) -> Diagnostic | None:
    """`common.trainer.optimizer { lr = 1e-4 }`."""
    match = re.fullmatch(r"\s*((\w+)(?:\.\w+)+)\s*", place.before)
    if place.kind != "LBRACE" or match is None:
        return None
    nested = " { ".join(match[1].split(".")) + " { ... }" + " }" * match[1].count(".")
    help_text = f"`{match[1]}.NAME = VALUE`, or a block in a block: `{nested}`"
    message = "a name with dots cannot have a block"
    return place.error("S001", "unexpected-token", message, help=help_text)


def _colon_for_equals(place: Place) -> Diagnostic | None:
    match = re.search(r"(?:^|[{,])\s*([A-Za-z_]\w*)\s*(:)\s*([A-Za-z_]\w*)?\s*$", place.before)
    if match is None:
        return None
    if match[3]:  # the word was parsed as a type, so the error is after it
        opened = open_bracket(place)
        if "EQUAL" not in place.expected or opened is None or opened[1] != "{":
            return None
    elif place.kind not in {"INT", "NUMBER", "STRING", "QUANTITY", "TRUE", "FALSE"}:
        return None
    line = place.start - len(place.before)
    end = line + match.start(3) if match[3] else place.start
    colon = Span(place.source.name, line + match.start(2), end)
    return place.error(
        "S022",
        "colon-for-equals",
        f"a setting needs `=`, not `:`: write `{match[1]} = {match[3] or place.text}`",
        span=Span(place.source.name, colon.start, colon.start + 1),
        fix=Fix(message="replace `:` by `=`", edits=(Edit(text=" = ", span=colon),)),
    )


def _unclosed_bracket(place: Place) -> Diagnostic | None:
    opened = open_bracket(place)
    if opened is None or opened[1] == "{" or place.kind in {"RPAR", "RSQB"}:
        return None
    start, char = opened
    on_same_line = "\n" not in place.source.text[start : place.start]
    if on_same_line and place.kind not in {"_NL", "RBRACE", "LBRACE", "$END"}:
        return None
    line = place.source.text[:start].rpartition("\n")[2]
    block = re.fullmatch(r"(model|dataset|flow|rubric|eval|profile)[ \t]+\w+[ \t]*", line)
    found = "the file ends" if place.kind == "$END" else f"{describe(place)} cannot stand inside it"
    return place.error(
        "S008",
        "unclosed-bracket",
        f"this `{char}` is never closed",
        span=Span(place.source.name, start, start + 1),
        label="opened here",
        help=f"a {block[1]} is a block: `{line.rstrip()} {{ ... }}`" if block else "",
        related=() if place.kind == "$END" else (Label(text=found, span=place.span),),
    )


_TYPE_OF = (
    (r"(?:true|false)\b", "bool"),
    (r'r?"', "str"),
    (r"\d[\d_.]*(?:ms|s|min|h|d)\b", "duration"),
    (r"\d[\d_.]*[KMGT]iB\b", "bytes"),
    (r"[-+]?\d[\d_]*(?:\.|[eE][-+\d])", "float"),
    (r"[-+]?\d", "int"),
)


def _param_without_type(place: Place) -> Diagnostic | None:
    match = re.match(r"\s*param\s+(\w+)\s*$", place.before)
    if match is None or place.kind != "EQUAL":
        return None
    value = place.source.text[place.start + 1 : place.start + WINDOW].lstrip(" \t")
    fits = next((name for pattern, name in _TYPE_OF if re.match(pattern, value)), "TYPE")
    return place.error(
        "S025",
        "parameter-without-type",
        f"parameter `{match[1]}` has no type",
        help=f"`param {match[1]} : {fits} = ...`; types are str, int, float, bool, duration, bytes",
    )


def _chained_comparison(place: Place) -> Diagnostic | None:
    if place.kind != "CMP" or not re.search(r"[<>]=?|[=!]=", place.before):
        return None
    word = re.search(r"\b(and|or|not)\s*$", place.before)
    if word is not None:
        message = f"an operand is missing between `{word[1]}` and `{place.text}`"
        help_text = "write both sides of each comparison: `x > 1.2 or x < 0.8`"
        return place.error("S001", "unexpected-token", message, help=help_text)
    return place.error(
        "S026",
        "chained-comparison",
        "comparisons cannot be chained",
        help="write `a < b and b < c`",
    )


def _missing_separator(place: Place) -> Diagnostic | None:
    """`procs = 1 gpus = 2`."""
    follows = re.match(r"[\w.]*\s*(=(?!=)|\{)", place.source.text[place.start :][:WINDOW])
    if place.kind != "NAME" or follows is None or "COMMA" not in place.expected:
        return None
    at = place.previous
    opened = open_bracket(place)
    if opened and opened[1] != "{" and "\n" in place.source.text[at : place.start]:
        text = place.source.text
        above = text[text.rfind("\n", 0, opened[0]) + 1 : opened[0]]
        if len(place.before) <= len(above) - len(above.lstrip()):
            return None  # not indented deeper than the line of the bracket, which is unclosed
    return place.error(
        "S024",
        "missing-separator",
        "two settings on one line need a comma between them",
        fix=Fix(
            message="insert `,`", edits=(Edit(text=",", span=Span(place.source.name, at, at)),)
        ),
    )


def _stray_bracket(place: Place) -> Diagnostic | None:
    if place.kind not in {"RPAR", "RSQB", "RBRACE"}:
        return None
    opened = open_bracket(place)
    wanted = PAIRS[place.text]
    if opened is not None and opened[1] == wanted:
        return None
    if opened is None or opened[1] == "{":
        return place.error("S017", "stray-bracket", f"no `{wanted}` is open here")
    span = Span(place.source.name, opened[0], opened[0] + 1)
    return place.error(
        "S017",
        "stray-bracket",
        f"`{place.text}` does not close `{opened[1]}`",
        related=(Label(text="opened here", span=span),),
    )


COMMON_MISTAKES: tuple[Callable[[Place], Diagnostic | None], ...] = (
    _open_string,
    _character,
    _missing_value,
    _operator_at_line_start,
    _assignment_as_comparison,
    _quantity_with_space,
    _block_after_equals,
    _record_in_braces,
    _block_of_a_path,
    _colon_for_equals,
    *FOREIGN,
    _param_without_type,
    _chained_comparison,
    _missing_separator,
    _unclosed_bracket,
    _stray_bracket,
)
