"""A syntax error of the parser -> the diagnostic a person can act on.

`HINTS` is tried in order; each entry looks at the place of the error and either recognises a
common slip or passes. What no entry knows becomes S001 (expected ..., found ...).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lark.exceptions import UnexpectedInput, UnexpectedToken

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Severity
from forgedsl.source import SourceFile, Span
from forgedsl.syntax.build import UNITS

_CHARACTERS = {
    "'": ("strings are written in double quotes", '"'),
    ";": ("a statement ends at the end of its line, without `;`", ""),
    "&": ("write `and`", "and"),
    "|": ("write `or`", "or"),
    "!": ("write `not`", "not"),
    "\u201c": ('this is a typographic quote; strings use `"`', '"'),
    "\u201d": ('this is a typographic quote; strings use `"`', '"'),
    "\u2018": ('this is a typographic quote; strings use `"`', '"'),
    "\u2019": ('this is a typographic quote; strings use `"`', '"'),
    "\u2013": ("this is an en dash; minus is `-`", "-"),
    "\u2212": ("this is a minus sign of typography; write `-`", "-"),
    "\u00a0": ("this is a no-break space", " "),
    "^": ("a power is written `**`", "**"),
    "\\": ("a statement goes on over the line end inside parentheses, without `\\`", ""),
}
_TOKEN_TEXT = {
    "_NL": "the end of the line",
    "$END": "the end of the file",
    "STRING": "a string",
    "TEXT": "a string",
    "RAW": "a string",
    "INT": "a number",
    "NUMBER": "a number",
    "QUANTITY": "a number",
}
_OPERATORS = {"SUM", "PROD", "CMP", "AND", "OR", "POW", "RANGE", "IF", "DOT"}
_BRACKETS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|r"[^"\n]*"|"(?:[^"\\\n]|\\.)*"?|#[^\n]*|[()\[\]{}]', re.DOTALL
)
_PAIRS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the parser stopped: the token there and the text before it."""

    source: SourceFile
    start: int
    end: int
    kind: str  # token type; "" for a character no token starts with
    text: str
    expected: frozenset[str]

    @property
    def span(self) -> Span:
        return Span(self.source.name, self.start, self.end)

    @property
    def before(self) -> str:
        """The line of the error up to the error."""
        return self.source.text[self.source.text.rfind("\n", 0, self.start) + 1 : self.start]

    @property
    def previous(self) -> int:
        """Offset after the last character before the error that is neither space nor comment."""
        text = self.source.text
        at = self.start
        while True:
            at = len(text[:at].rstrip())
            line_start = text.rfind("\n", 0, at) + 1
            comment = _comment_start(text[line_start:at])
            if comment is None:
                return at
            at = line_start + comment

    def error(
        self,
        code: str,
        name: str,
        message: str,
        *,
        span: Span | None = None,
        label: str = "",
        help: str = "",
        related: tuple[Label, ...] = (),
        fix: Fix | None = None,
    ) -> Diagnostic:
        return Diagnostic(
            code=code,
            name=name,
            severity=Severity.ERROR,
            message=message,
            span=span or self.span,
            label=label,
            help=help,
            related=related,
            fix=fix,
        )

    def replace_by(self, text: str, message: str) -> Fix:
        return Fix(message=message, edits=(Edit(text=text, span=self.span),))


def _comment_start(line: str) -> int | None:
    if "#" not in line:
        return None
    for match in _BRACKETS.finditer(line):
        if match[0].startswith("#"):
            return match.start()
    return None


def explain(error: UnexpectedInput, source: SourceFile) -> Diagnostic:
    """The diagnostic for one parser error."""
    place = _place(error, source)
    for hint in HINTS:
        diagnostic = hint(place)
        if diagnostic is not None:
            return diagnostic
    return _generic(place)


def _place(error: UnexpectedInput, source: SourceFile) -> Place:
    if isinstance(error, UnexpectedToken):
        token = error.token
        if token.type == "$END":
            end = len(source.text.rstrip())
            start, end, text = end, min(end + 1, len(source.text)), ""
        else:
            start, end, text = token.start_pos or 0, token.end_pos or 0, str(token)
        if token.type == "_NL":
            end = start + 1
        kind = token.type
        expected = frozenset(error.expected)
    else:
        start = error.pos_in_stream or 0
        end, text, kind, expected = start + 1, source.text[start], "", frozenset()
    return Place(source=source, start=start, end=end, kind=kind, text=text, expected=expected)


# ---- the slips


def _open_bracket(place: Place) -> tuple[int, str] | None:
    """The innermost bracket open at the error."""
    stack: list[tuple[int, str]] = []
    for match in _BRACKETS.finditer(place.source.text, 0, place.start):
        char = match[0]
        if char in "([{":
            stack.append((match.start(), char))
        elif char in _PAIRS and stack and stack[-1][1] == _PAIRS[char]:
            stack.pop()
    return stack[-1] if stack else None


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
        help='close it with `"`; text over several lines is written between `"""`',
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
            fix=place.replace_by(replacement, help_text) if replacement else None,
        )
    return place.error("S002", "unexpected-character", f"unexpected character {_show(place.text)}")


def _show(char: str) -> str:
    return f"`{char}`" if char.isprintable() and char != "`" else f"U+{ord(char):04X}"


def _missing_value(place: Place) -> Diagnostic | None:
    if place.kind not in {"_NL", "RBRACE", "COMMA", "RPAR", "$END"}:
        return None
    at = place.previous
    text = place.source.text[:at]
    match = re.search(
        r"([\w.]+)\s*=$|(?<![=!<>])([-+*/%]|\*\*|==|!=|<=|>=|<|>|\b(?:and|or|not))$", text
    )
    if match is None:
        return None
    span = Span(place.source.name, match.start(), at)
    if match[1]:
        message = f"the value of `{match[1]}` is missing"
        help_text = f"write `{match[1]} = ...` on one line, or remove the line"
    else:
        message = f"nothing follows `{match[2]}`"
        help_text = "an expression over several lines is wrapped in parentheses"
    return place.error("S005", "value-missing", message, span=span, help=help_text)


def _operator_at_line_start(place: Place) -> Diagnostic | None:
    if place.kind not in _OPERATORS or place.before.strip():
        return None
    return place.error(
        "S010",
        "operator-at-line-start",
        f"a line cannot begin with `{place.text}`",
        help="a newline ends the statement; wrap the whole expression in parentheses",
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
    comment = _comment_start(text[place.start : end])
    end = place.start + len(text[place.start : place.start + comment if comment else end].rstrip())
    name = place.source.name
    edits = (
        Edit(text="(", span=Span(name, equals.end(), equals.end())),
        Edit(text=")", span=Span(name, end, end)),
    )
    return Fix(message="wrap the expression in parentheses", edits=edits)


def _assignment_as_comparison(place: Place) -> Diagnostic | None:
    if place.kind != "EQUAL" or "COLON" in place.expected:
        return None
    before = place.before
    condition = re.search(r"\b(require|when|if|and|or|not)\b", before) or "=" in before
    if not condition:
        return None
    return place.error(
        "S006",
        "assignment-as-comparison",
        "`=` gives a value, it does not compare",
        help="write `==`",
        fix=place.replace_by("==", "replace `=` by `==`"),
    )


def _quantity_with_space(place: Place) -> Diagnostic | None:
    if place.kind != "NAME":
        return None
    match = re.search(r"(?<![\w.])([0-9][0-9_.]*)([ \t]*)$", place.before)
    if match is None:
        return None
    span = Span(place.source.name, place.start - len(match[0]), place.end)
    if place.text in UNITS:
        fixed = match[1] + place.text
        edit = Edit(text=fixed, span=span)
        return place.error(
            "S007",
            "space-before-unit",
            "a number and its unit are written together",
            span=span,
            help=f"write `{fixed}`",
            fix=Fix(message=f"write `{fixed}`", edits=(edit,)),
        )
    if match[2]:
        return None
    return place.error(
        "S007",
        "unknown-unit",
        f"`{match[1]}{place.text}` is neither a number nor a quantity",
        span=span,
        help="units are " + " ".join(UNITS),
    )


def _block_after_equals(place: Place) -> Diagnostic | None:
    match = re.search(r"([A-Za-z_]\w*)\s*=\s*$", place.before)
    if place.kind != "LBRACE" or match is None:
        return None
    span = Span(place.source.name, place.start - len(match[0]) + len(match[1]), place.start)
    fix = Fix(message="remove the `=`", edits=(Edit(text=" ", span=span),))
    return place.error(
        "S021", "block-as-value", f"write `{match[1]} {{ ... }}` without `=`", fix=fix
    )


def _colon_for_equals(place: Place) -> Diagnostic | None:
    match = re.search(r"(?:^|[{,])\s*([A-Za-z_]\w*)\s*(:)\s*$", place.before)
    if match is None or place.kind not in {"INT", "NUMBER", "STRING", "QUANTITY", "TRUE", "FALSE"}:
        return None
    colon = Span(place.source.name, place.start - len(place.before) + match.start(2), place.start)
    return place.error(
        "S022",
        "colon-for-equals",
        f"a setting is written `{match[1]} = {place.text}`",
        span=Span(place.source.name, colon.start, colon.start + 1),
        fix=Fix(message="replace `:` by `=`", edits=(Edit(text=" = ", span=colon),)),
    )


def _chained_call(place: Place) -> Diagnostic | None:
    if place.kind not in {"DOT", "LPAR"} or not place.before.rstrip().endswith(")"):
        return None
    return place.error(
        "S023",
        "chained-call",
        "calls do not chain",
        help="give the first result a name, then call on that name: every edge has a name",
    )


def _unclosed_bracket(place: Place) -> Diagnostic | None:
    opened = _open_bracket(place)
    if opened is None or opened[1] == "{" or place.kind in {"RPAR", "RSQB"}:
        return None
    start, char = opened
    on_same_line = "\n" not in place.source.text[start : place.start]
    if on_same_line and place.kind not in {"_NL", "RBRACE", "LBRACE", "$END"}:
        return None
    found = (
        "the file ends" if place.kind == "$END" else f"{_describe(place)} cannot stand inside it"
    )
    return place.error(
        "S008",
        "unclosed-bracket",
        f"this `{char}` is never closed",
        span=Span(place.source.name, start, start + 1),
        label="opened here",
        related=() if place.kind == "$END" else (Label(text=found, span=place.span),),
    )


def _stray_bracket(place: Place) -> Diagnostic | None:
    if place.kind not in {"RPAR", "RSQB", "RBRACE"}:
        return None
    opened = _open_bracket(place)
    wanted = _PAIRS[place.text]
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


HINTS: tuple[Callable[[Place], Diagnostic | None], ...] = (
    _open_string,
    _character,
    _missing_value,
    _operator_at_line_start,
    _assignment_as_comparison,
    _quantity_with_space,
    _block_after_equals,
    _colon_for_equals,
    _chained_call,
    _unclosed_bracket,
    _stray_bracket,
)


def _describe(place: Place) -> str:
    return _TOKEN_TEXT.get(place.kind) or f"`{place.text}`"


def _generic(place: Place) -> Diagnostic:
    """Expected and found; the expectation is said in the words of the language."""
    expected = place.expected
    parts: list[str] = []
    if "STRING" in expected and "INT" in expected:
        parts.append("an expression")
    elif "DIFF" in expected:
        parts.append("a type")
    elif "NAME" in expected:
        parts.append("a name")
    elif "STRING" in expected:
        parts.append("a string")
    symbols = {"EQUAL": "`=`", "LBRACE": "`{`", "RBRACE": "`}`", "COLON": "`:`", "COMMA": "`,`"}
    symbols |= {"LPAR": "`(`", "RPAR": "`)`", "RSQB": "`]`", "ARROW": "`->`", "ELSE": "`else`"}
    parts += [text for kind, text in symbols.items() if kind in expected]
    if "_NL" in expected:
        parts.append("the end of the line")
    message = f"unexpected {_describe(place)}"
    if parts:
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"
        message = f"expected {listed}, found {_describe(place)}"
    return place.error("S001", "unexpected-token", message)
