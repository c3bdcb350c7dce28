"""Writes expressions over a row, rollout or score as Python.

The scalar half of the expression language: strings, numbers and booleans of dataset columns,
rewards and rubrics. `Scalars` walks the AST once, checks dtypes on the way and resolves names
through the function's scope; functions of the file are inlined as Python functions by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from forgedsl.diagnostics import Reporter, error
from forgedsl.emit.expressions import ATOM, COMPARE, POWER, PRODUCT, SUM, UNARY, Text, literal
from forgedsl.hir.context import Context
from forgedsl.ir import program as ir
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import chain
from forgedsl.types.ops import BY_NAME

LEVEL = {
    "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "**": POWER, "==": COMPARE,
    "!=": COMPARE, "<": COMPARE, "<=": COMPARE, ">": COMPARE, ">=": COMPARE,
}  # fmt: skip
EQUAL = ("==", "!=")
CONDITIONAL, OR_ELSE, AND_THEN, NOT = -4, -3, -2, -1

NUMERIC = (*BY_NAME, "clamp", "clip", "min", "max")
TEXTUAL = {
    "chat": ("system", "user", "assistant"),
    "sharegpt": ("turns",),
    "paragraphs": ("s",),
    "after": ("s", "sep"),
    "before": ("s", "sep"),
    "strip": ("s",),
    "lower": ("s",),
    "len": ("s",),
    "matches": ("s", "pattern"),
    "text": ("x",),
    "first": ("x",),
    "env": ("name",),
    "record": (),
}
ANY = ("record", "chat", "sharegpt", "first")
"""functions whose arguments and result may have any type"""
READS = {
    "len": "any",
    "text": "any",
    **dict.fromkeys(ANY, "any"),
    **dict.fromkeys(NUMERIC, "number"),
}
RESULT = {"len": "number", "matches": "bool", "is_finite": "bool", **dict.fromkeys(ANY, "any")}
ROLLOUT = {
    "prompt": "str", "response": "str", "target": "any", "num_tokens": "number",
    "truncated": "bool", "turns": "number", "ended": "str", "rewards": "parts",
}  # fmt: skip
ROLLOUT_CODE = {"prompt": "prompt.text"}
"""Python code of attributes that have another name at run time"""
WORDS = {
    "str": "text", "number": "a number", "bool": "true or false", "none": "`none`",
    "list": "a list", "row": "a row", "rollout": "a rollout",
}  # fmt: skip
LONG_TEXT = 60


@dataclass(slots=True)
class Scalars:
    """Writes the expressions of a function. `locals` maps names to (Python text, type)."""

    scope: ir.Scope
    reporter: Reporter
    locals: dict[str, tuple[str, str]]
    texts: dict[str, str]
    """long string literals -> names of module constants"""
    call_function: Callable[[ir.Function], str]
    """returns the Python name of a function of the language"""
    read_file: Callable[[ast.String], str]
    """returns the text of a file beside the .forge file, for `file(path)`"""

    def expr(self, node: ast.Expr) -> tuple[Text, str]:
        """Return the Python text of an expression and its type: number, bool, str, none, list or
        any."""
        match node:
            case ast.Integer() | ast.Number() | ast.Quantity():
                return literal(node.value), "number"
            case ast.Bool():
                return literal(node.value), "bool"
            case ast.String():
                return self.constant(node.value)
            case ast.NoneLiteral():
                return literal(None), "none"
            case ast.List():
                items = [self.expr(item)[0].code for item in node.items]
                return Text(f"[{', '.join(items)}]"), "list"
            case ast.Path():
                return self._path(node)
            case ast.Index():
                return self._index(node)
            case ast.Call():
                return self._call(node)
            case ast.Unary():
                return self._unary(node)
            case ast.Binary():
                return self._binary(node)
            case ast.Conditional():
                return self._conditional(node)

    def constant(self, value: Any) -> tuple[Text, str]:
        """Write a folded value. Long strings become constants of the module."""
        if isinstance(value, str):
            if len(repr(value)) <= LONG_TEXT:
                return Text(quoted(value)), "str"
            name = self.texts.setdefault(value, f"TEXT_{len(self.texts) + 1}")
            return Text(name), "str"
        if isinstance(value, list | tuple):
            return Text(f"[{', '.join(self.constant(item)[0].code for item in value)}]"), "list"
        if isinstance(value, bool):
            return literal(value), "bool"
        return literal(value), "none" if value is None else "number"

    def _path(self, node: ast.Path) -> tuple[Text, str]:
        first, *rest = node.parts
        if node.text in self.locals:
            first, rest = node.text, []
        if first in self.locals:
            return self._local(node, rest)
        found = self.scope.lookup(node.parts)
        if isinstance(found, ir.Constant):
            return self.constant(found.value)
        if found is None:
            known = [*self.locals, *self.scope.names]
            return self._unknown("undefined name", node.text, node.span, known)
        return self.error("T702", "dtype", f"`{node.text}` is not a value", node.span)

    def _local(self, node: ast.Path, rest: list[str]) -> tuple[Text, str]:
        """Write a row, a rollout, a local, or a part of one."""
        code, type_ = self.locals[node.text if not rest else node.parts[0]]
        if type_ == "row" and len(rest) == 1:
            return Text(f"{code}.{rest[0]}"), "any"
        if type_ == "row" or (type_ != "rollout" and rest):
            return item(code, [quoted(key) for key in rest]), "any"
        if not rest:
            return Text(code), type_
        if rest[0] not in ROLLOUT:
            return self._unknown("a rollout has no attribute", rest[0], node.span, [*ROLLOUT])
        code, type_ = f"{code}.{ROLLOUT_CODE.get(rest[0], rest[0])}", ROLLOUT[rest[0]]
        if len(rest) == 1:
            return Text(code), type_
        if type_ == "parts":
            return Text(f"{code}[{quoted(rest[1])}]"), "number"
        if type_ != "any":
            self.error(
                "F101", "undefined", f"`{rest[0]}` is a {type_}, which has no attributes", node.span
            )
        return item(code, [quoted(key) for key in rest[1:]]), "any"

    def _index(self, node: ast.Index) -> tuple[Text, str]:
        """Write `row.messages[0].content` as `item(row, "messages", 0, "content")`."""
        path, keys = chain(node)
        code, type_ = self._path(path)
        whole = code.code
        if type_ not in ("any", "str", "list"):
            self.error("T702", "dtype", f"a {type_} cannot be indexed", node.span)
        keyed = [self.expr(key)[0].code for key in keys]
        if path.parts[0] in self.locals and self.locals[path.parts[0]][1] == "row":
            whole = self.locals[path.parts[0]][0]
            keyed = [*map(quoted, path.parts[1:]), *keyed]
        return item(whole, keyed), "any"

    def _call(self, node: ast.Call) -> tuple[Text, str]:
        name = node.function.text
        if name == "file":
            return self._file(node)
        if name in NUMERIC or name in TEXTUAL:
            return self._builtin(node, name)
        found = self.scope.lookup(node.function.parts)
        if isinstance(found, ir.Function) and found.kind in ("fn", "reward"):
            args = ", ".join(self._argument(arg) for arg in node.args)
            return Text(f"{self.call_function(found)}({args})"), "any"
        if found is not None:
            message = f"`{name}` cannot be called here"
            return self.error("T702", "dtype", message, node.function.span)
        known = [*NUMERIC, *TEXTUAL]
        return self._unknown("undefined function", name, node.function.span, known)

    def _file(self, node: ast.Call) -> tuple[Text, str]:
        """Write the text of a file, which is read now, so that the job does not need the file."""
        path = node.args[0].value if len(node.args) == 1 else None
        if not isinstance(path, ast.String):
            return self.error("T702", "dtype", "`file` takes one path, a string", node.span)
        try:
            return self.constant(self.read_file(path))
        except (OSError, UnicodeDecodeError) as error:
            return self.error(
                "F115", "import-not-found", f"cannot read the file: {error}", path.span
            )

    def _argument(self, arg: ast.Arg) -> str:
        row = isinstance(arg.value, ast.Path) and self.locals.get(arg.value.text)
        whole = row and row[1] == "row"  # functions take the row itself, other uses a record
        code = row[0] if row and whole else self.expr(arg.value)[0].code
        return code if arg.name is None else f"{arg.name}={code}"

    def _builtin(self, node: ast.Call, name: str) -> tuple[Text, str]:
        values = []
        for arg in node.args:
            text, type_ = self.expr(arg.value)
            if (wanted := READS.get(name, "str")) != "any":
                self._expect(type_, wanted, arg.value)
            # evaluated lazily, so that a missing column of another branch is no error
            if name == "first":
                text = Text(f"lambda: {text.code}")
            values.append(text.code if arg.name is None else f"{arg.name}={text.code}")
        if name == "matches" and (problem := self._bad_pattern(node.args[-1].value)):
            return problem
        python = "clamp" if name == "clip" else name
        result = RESULT.get(name, "number" if name in NUMERIC else "str")
        return Text(f"{python}({', '.join(values)})"), result

    def _bad_pattern(self, node: ast.Expr) -> tuple[Text, str] | None:
        if not isinstance(node, ast.String):
            return None
        try:
            re.compile(node.value)
        except re.error as error:
            message = f"`{node.value}` is not a valid regular expression: {error}"
            return self.error("F113", "bad-value", message, node.span)
        return None

    def _unary(self, node: ast.Unary) -> tuple[Text, str]:
        text, type_ = self.expr(node.operand)
        if node.operator == "not":
            self._expect(type_, "bool", node.operand)
            return Text(f"not {text.inside(NOT)}", NOT), "bool"
        self._expect(type_, "number", node.operand)
        return Text(f"{node.operator}{text.inside(UNARY)}", UNARY), "number"

    def _binary(self, node: ast.Binary) -> tuple[Text, str]:
        (left, left_type), (right, right_type) = self.expr(node.left), self.expr(node.right)
        operator = node.operator
        if operator in ("and", "or"):
            level = AND_THEN if operator == "and" else OR_ELSE
            for type_, side in ((left_type, node.left), (right_type, node.right)):
                self._expect(type_, "bool", side)
            code = f"{left.inside(level)} {operator} {right.inside(level + 1)}"
            return Text(code, level), "bool"
        if operator not in LEVEL:
            return self.error("T702", "dtype", f"`{operator}` cannot be used here", node.span)
        level = LEVEL[operator]
        if level == COMPARE:
            if {left_type, right_type} == {"str", "number"}:
                what = "are never equal" if operator in EQUAL else "cannot be compared"
                which = node.right if left_type == "str" else node.left
                message = f"text and a number {what}"
                return self.error("T702", "dtype", message, node.span, help=as_text(which))
            if operator in EQUAL and {left_type, right_type} == {"str", "any"}:
                code = f"same({left.code}, {right.code})"
                return (Text(code) if operator == "==" else Text(f"not {code}", NOT)), "bool"
            code = f"{left.inside(level + 1)} {operator} {right.inside(level + 1)}"
            return Text(code, level), "bool"
        types = {left_type, right_type}
        joined = operator == "+" and "str" in types
        for type_, side in ((left_type, node.left), (right_type, node.right)):
            self._expect(type_, "str" if joined else "number", side)
        if operator == "**":
            return Text(f"{left.inside(ATOM)} ** {right.inside(UNARY)}", POWER), "number"
        code = f"{left.inside(level)} {operator} {right.inside(level + 1)}"
        either = operator == "+" and types == {"any"}
        return Text(code, level), "str" if joined else "any" if either else "number"

    def _conditional(self, node: ast.Conditional) -> tuple[Text, str]:
        test, test_type = self.expr(node.test)
        self._expect(test_type, "bool", node.test)
        then, then_type = self.expr(node.then)
        otherwise, other_type = self.expr(node.otherwise)
        code = f"{then.inside(OR_ELSE)} if {test.inside(OR_ELSE)} else {otherwise.code}"
        return Text(code, CONDITIONAL), then_type if then_type == other_type else "any"

    def _expect(self, type_: str, wanted: str, node: ast.Expr) -> None:
        if type_ not in (wanted, "any"):
            message = (
                f"{WORDS.get(wanted, wanted)} is needed here, but this is {WORDS.get(type_, type_)}"
            )
            textual = wanted == "str" and type_ in ("number", "bool")
            help_text = as_text(node) if textual else ""
            self.error("T702", "dtype", message, node.span, help=help_text)

    def _unknown(self, what: str, name: str, span: Span, candidates: list[str]) -> tuple[Text, str]:
        Context(self.reporter).unknown("F101", what, name, span, candidates)
        return Text("None"), "any"

    def error(
        self, code: str, name: str, message: str, span: Span, *, help: str = ""
    ) -> tuple[Text, str]:
        """Report an error; the expression gets the type `any`."""
        self.reporter.report(error(code, name, message, span, help=help))
        return Text("None"), "any"


def as_text(node: ast.Expr) -> str:
    """Write a number as text."""
    written = node.text if isinstance(node, ast.Path) else "..."
    return f"`text({written})` converts it to text"


def item(code: str, keys: list[str]) -> Text:
    """Write the access to a part of a row or of nested data."""
    return Text(f"item({', '.join((code, *keys))})")


def quoted(value: str) -> str:
    """Write a string literal in double quotes, as the formatter does."""
    text = repr(value)
    if text.startswith("'") and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


def long_text(name: str, value: str) -> list[str]:
    """Write `TEXT_1 = ...`, over several lines if it is long."""
    line = f"{name} = {quoted(value)}"
    if len(line) <= 100:
        return [line]
    pieces = [value[start : start + 80] for start in range(0, len(value), 80)]
    return [f"{name} = (", *(f"    {quoted(piece)}" for piece in pieces), ")"]
