"""Evaluates the expression of a setting to a value of the setting's type.

A bare word is looked up in the schema first (`device = cpu`), then as a name. Values: Python
scalars (durations in seconds, sizes in bytes), lists, `Auto`, `Ref`, `Constructor`, `Deferred`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from forgedsl import surface
from forgedsl.diagnostics import Edit, Fix, Label, counted
from forgedsl.hir.context import ERROR, Context
from forgedsl.hir.evaluate import Bytes, NamesOfFile, Seconds, evaluate, is_auto, show, type_name
from forgedsl.hir.table import Declared, part_span
from forgedsl.ir.program import Constructor, Deferred, Ref, Scope
from forgedsl.mistakes.other_tools import equivalent, one_by_one
from forgedsl.records import replace
from forgedsl.settings import Auto, Parameter, Required, Signature, Type
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.units import OTHER_UNITS

MIXTURE = "`mixture([a, b], weights = [0.5, 0.5])`"


PYTHON = ("True", "False", "None")
"""Python spellings of `true`, `false` and `none`"""


class Coercer:
    """Converts expressions to values of a type. `used` collects the names of declarations they
    refer to."""

    def __init__(
        self,
        ctx: Context,
        names: NamesOfFile,
        declared: dict[str, Declared],
        rebase: Callable[[str], str] = str,
    ) -> None:
        self.ctx = ctx
        self.rebase = rebase
        """converts a path of this file to one relative to the program's folder"""
        self.names = names
        self.declared = declared
        self.used: set[str] = set()

    def value(self, expr: ast.Expr, type_: Type, scope: Scope, what: str) -> Any:
        """Evaluate `expr` as a `type_`; ERROR after a diagnostic. `what` names the setting in
        messages."""
        if isinstance(expr, ast.NoneLiteral):
            if "none" in type_.words:
                return "none"
            return None if type_.optional or type_.base == "any" else self._wrong(expr, type_, what)
        if isinstance(expr, ast.Path) and len(expr.parts) == 1:
            word = self._word(expr, type_)
            if word is not None:
                return word
            if expr.text in PYTHON and not self.names.knows(expr.text) and not _takes(type_, expr):
                message = f"{what} must be {type_.text}, not `{expr.text}`"
                return self.ctx.error("F109", message, expr.span)
        if type_.base in ("deferred", "loss"):
            return Deferred(expr=expr, scope=scope)
        if type_.base == "ctor":
            return self._constructor(expr, type_, scope, what)
        if type_.base == "ref":
            return self._ref(expr, type_, what)
        if type_.base == "list" and isinstance(expr, ast.List):
            assert type_.item is not None
            items = [self.value(item, type_.item, scope, what) for item in expr.items]
            if ERROR not in items and (refused := type_.refuses(items)):
                message = f"{what} must be {refused}, but has {len(items)}"
                return self.ctx.error("F113", message, expr.span)
            return ERROR if ERROR in items else items
        words = (*type_.words, *(("auto",) if type_.auto else ()))
        if type_.base == "word" and isinstance(expr, ast.Path):
            what = f"{what} must be one of {', '.join(f'`{w}`' for w in words)}, not"
            return self.ctx.unknown("F113", what, expr.text, expr.span, words)
        if isinstance(expr, ast.Path) and type_.words and not self.names.knows(expr.parts[0]):
            if type_.base == "str":
                return self._unlisted(f"{what} must be a string, not", expr.text, expr.span, type_)
            what = f"{what} must be {type_.text}, not"
            return self.ctx.unknown("F113", what, expr.text, expr.span, words)
        return self.folded(expr, type_, what)

    def folded(self, expr: ast.Expr, type_: Type, what: str) -> Any:
        """Fold an expression of names and numbers. An undefined word on the command line
        (`--set trainer.procs=abc`) is reported as a value of the wrong type."""
        text = expr.text if isinstance(expr, ast.Path) else ""
        is_typed = surface.is_typed(expr.span.file) or text == "auto"
        if is_typed and isinstance(expr, ast.Path) and not self.names.knows(expr.parts[0]):
            small = text.lower()
            help_text = f"write `{small}`" if small in ("true", "false", "none") else ""
            if small == "auto":
                help_text = "write a value: the plan does not choose this one"
            if type_.base == "str" and not help_text:
                help_text = (
                    f'write `"{expr.text}"`, and put single quotes around the whole argument: '
                    "without them the shell removes the double quotes"
                )
            message = f"{what} must be {type_.text}, not `{expr.text}`"
            return self.ctx.error("F109", message, expr.span, help=help_text)
        if type_.base == "str" and (bare := _bare_path(expr)) and not self.names.knows(bare[0]):
            message = f"{what} is a string, but `{bare[1]}` is not in quotes"
            edit = Edit(text=f'"{bare[1]}"', span=expr.span)
            fix = Fix(message=f"put `{bare[1]}` in quotes", edits=(edit,))
            return self.ctx.error("F101", message, expr.span, help=f"write `{edit.text}`", fix=fix)
        if isinstance(expr, ast.Path) and not self.names.knows(expr.parts[0]):
            span, help_text = part_span(expr, 0, 0), f"{what} is {type_.text}"
            if type_.base == "str":
                help_text += f': `"{expr.text}"`'
            known = self.names.constants()
            return self.ctx.unknown("F101", "undefined name", expr.parts[0], span, known, help_text)
        found = evaluate(expr, self.names, self.ctx)
        if found is ERROR:
            return found
        return self.check(found, type_, expr.span, what, expr)

    def check(
        self, value: Any, type_: Type, span: Span, what: str, written: ast.Expr | None = None
    ) -> Any:
        """Check a folded value against a type and its range. `Seconds` becomes float, integral
        counts int. A message shows the values of the parameters of `written`."""
        if is_auto(value):
            if type_.auto:
                return value
            message = f"{what} depends on a value that is `auto`"
            return self.ctx.error("F113", message, span, help="write that value in the file")
        if value is None and (type_.optional or type_.base == "any"):
            return None
        result = _convert(value, type_)
        if result is ERROR:
            given = type_name(value)
            base = {Seconds: "duration", Bytes: "bytes"}.get(type(value), "")
            shown = "" if value is None else f" ({show(value, base)})"
            one = one_by_one(value) if isinstance(value, str) else ""
            help_text = one or _unit_help(value, type_)
            if type_.base == "str" and type_.words:
                help_text, type_ = _known_words(type_), replace(type_, words=())
            message = f"{what} must be {type_.text}, not {given}{shown}"
            related = self._origins(written)
            return self.ctx.error("F109", message, span, help=help_text, related=related)
        refused = type_.refuses(result)
        if refused:
            message = f"{what} must be {refused}, not {show(value)}"
            return self.ctx.error("F113", message, span, related=self._origins(written))
        if type_.base == "str" and type_.words and result not in type_.words:
            return self._unlisted(f"{what} has no", str(result), span, type_)
        return result

    def _origins(self, written: ast.Expr | None) -> tuple[Label, ...]:
        return () if written is None else self.names.origins(written)

    def _unlisted(self, what: str, name: str, span: Span, type_: Type) -> Any:
        """Report a value that is none of the strings which a type accepts."""
        help_text = equivalent(name) or _known_words(type_)
        words = type_.words
        return self.ctx.unknown("F113", what, name, span, words, help_text, strings=True)

    def _word(self, expr: ast.Path, type_: Type) -> Any:
        word = expr.text
        if word in type_.words and type_.base != "str":
            return word
        if word == "auto" and type_.auto:
            return Auto()
        return None

    def _wrong(self, expr: ast.Expr, type_: Type, what: str) -> Any:
        message = f"{what} must be {type_.text}, not "
        if isinstance(expr, ast.String) and (form := _form_of(expr.value, type_)):
            fix = Fix(message=f"write `{form}`", edits=(Edit(text=form, span=expr.span),))
            return self.ctx.error(
                "F109", message + "a string", expr.span, help=f"write `{form}`", fix=fix
            )
        given = "`none`" if isinstance(expr, ast.NoneLiteral) else "this"
        given = "true or false" if isinstance(expr, ast.Bool) else given
        help_text = MIXTURE if isinstance(expr, ast.List) and "mixture" in type_.ctors else ""
        return self.ctx.error("F109", message + given, expr.span, help=help_text)

    def _ref(self, expr: ast.Expr, type_: Type, what: str) -> Any:
        if not isinstance(expr, ast.Path):
            return self._wrong(expr, type_, what)
        other = self.declared.get(expr.text)
        if other is not None and other.kind.name in type_.kinds:
            self.used |= {expr.text, expr.parts[0]}
            return Ref(name=other.name)
        kinds = " or ".join(type_.kinds)
        if other is not None:
            message = f"{what} must be a {kinds}, but `{expr.text}` is a {other.kind.name}"
            related = (Label(text="declared here", span=other.name_span),)
            return self.ctx.error("F109", message, expr.span, related=related)
        candidates = [n for n, d in self.declared.items() if d.kind.name in type_.kinds]
        return self.ctx.unknown("F101", f"there is no {kinds}", expr.text, expr.span, candidates)

    def _constructor(self, expr: ast.Expr, type_: Type, scope: Scope, what: str) -> Any:
        args: tuple[ast.Arg, ...] = ()
        if isinstance(expr, ast.Path):
            name = expr
        elif isinstance(expr, ast.Call):
            name, args = expr.function, expr.args
        else:
            return self._wrong(expr, type_, what)
        signature = type_.ctors.get(name.text)
        if signature is None:
            known = (*type_.ctors, *type_.words, *(("auto",) if type_.auto else ()))
            # the quotes may have been forgotten around a file name
            if "." in name.text and name.parts[-1] in type_.ctors:
                help_text = f"write `{_form_of(name.text, type_)}`"
                message = f"{what} cannot be `{name.text}`"
                return self.ctx.error("F101", message, name.span, help=help_text)
            return self.ctx.unknown("F101", f"{what} cannot be", name.text, name.span, known)
        if name.text == "mixture" and not any(arg.name == "weights" for arg in args[1:2]):
            listed = len(args) == 1 and isinstance(args[0].value, ast.List)
            message = f"`mixture` {'needs `weights`' if listed else 'takes one list of sources'}"
            return self.ctx.error("F114", message, expr.span, help=MIXTURE)
        if name.text == "reasoning_gym":
            from forgedsl.hir.reasoning_gym_calls import resolve_reasoning_gym  # few need it

            return resolve_reasoning_gym(self, args, expr.span, scope)
        bound = self.bind(signature, args, expr.span, scope)
        if bound is ERROR:
            return ERROR
        if name.text == "mixture":
            sources, weights = len(bound["sources"]), len(bound["weights"])
            if not sources or sources != weights:
                message = f"`mixture` has {sources} sources and {weights} weights"
                help_text = "give one weight per source"
                return self.ctx.error("F113", message, expr.span, help=help_text)
        if name.text == "hf" and (help_text := _not_of_hub(str(bound.get("id", "")), type_)):
            message = f"{what} must name a repository of the hub, but `{bound['id']}` is not one"
            return self.ctx.error("F113", message, expr.span, help=help_text)
        if isinstance(bound.get("path"), str):
            bound["path"] = self.rebase(bound["path"])
        return Constructor(name=signature.name, args=bound, span=expr.span)

    def bind(
        self, signature: Signature, args: tuple[ast.Arg, ...], span: Span, scope: Scope
    ) -> Any:
        """Bind arguments to parameters and fill in defaults; ERROR if one is wrong."""
        params = {p.name: p for p in signature.params}
        positional = [p for p in signature.params if not p.keyword]
        bound: dict[str, Any] = {}
        texts = [f'"{arg.value.value}"' for arg in args if isinstance(arg.value, ast.String)]
        if 1 < len(texts) == len(args) > len(positional) == 1 and positional[0].type.item:
            message = f"`{positional[0].name}` of `{signature.name}` must be one list"
            help_text = f"write `{signature.name}([{', '.join(texts)}])`"
            return self.ctx.error("F114", message, args[1].span, help=help_text)
        for index, arg in enumerate(args):
            param = self._parameter(signature, arg, index, positional, params)
            if param is None:
                return ERROR
            if param.name in bound:
                message = f"`{signature.name}` gets `{param.name}` twice"
                return self.ctx.error("F114", message, arg.span)
            what = f"`{param.name}` of `{signature.name}`"
            bound[param.name] = self.value(arg.value, param.type, scope, what)
        for param in signature.params:
            if param.name not in bound:
                if isinstance(param.default, Required):
                    message = f"`{signature.name}` needs `{param.name}`"
                    needed = [p.name for p in signature.params if isinstance(p.default, Required)]
                    shown = ", ".join(f"{name} = ..." for name in needed)
                    help_text = f"`{signature.name}({shown})`: {signature.doc}"
                    return self.ctx.error("F114", message, span, help=help_text)
                bound[param.name] = param.default
        return ERROR if ERROR in bound.values() else bound

    def _parameter(
        self,
        signature: Signature,
        arg: ast.Arg,
        index: int,
        positional: list[Parameter],
        params: dict[str, Parameter],
    ) -> Parameter | None:
        if arg.name is not None:
            if arg.name in params:
                return params[arg.name]
            span = Span(arg.span.file, arg.span.start, arg.span.start + len(arg.name))
            what = f"`{signature.name}` has no parameter"
            self.ctx.unknown("F114", what, arg.name, span, params, signature.instead)
            return None
        if index < len(positional):
            return positional[index]
        most = len(positional)
        message = f"`{signature.name}` takes {counted(most, 'positional argument')}"
        self.ctx.error("F114", message, arg.span, help=signature.instead)
        return None


def _convert(value: Any, type_: Type) -> Any:
    """Convert `value` to a plain Python value of the type; ERROR if it is another type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    dimensioned = isinstance(value, Seconds | Bytes)
    match type_.base:
        case "any":
            return value
        case "str" if isinstance(value, str):
            return value
        case "bool" if isinstance(value, bool):
            return value
        case "int" if is_number and not dimensioned and value == int(value):
            return int(value)
        case "interval" if isinstance(value, Seconds):
            return float(value)
        case "interval" if is_number and not dimensioned and value == int(value):
            return int(value)
        case "float" if is_number and not dimensioned:
            return float(value)
        case "duration" if isinstance(value, Seconds) or (is_number and value == 0):
            return float(value)
        case "bytes" if isinstance(value, Bytes) or (is_number and value == 0):
            return int(value)
        case "list" if isinstance(value, list):
            if type_.item is None:
                return value
            items = [_convert(item, type_.item) for item in value]
            return ERROR if ERROR in items else items
    return ERROR


def _bare_path(expr: ast.Expr) -> tuple[str, str] | None:
    """Return the first name and the text of a path or id without quotes, such as `a.jsonl`,
    `data/a-b.jsonl` or `Qwen/Qwen3`; None if it is an expression of another form."""
    text = _joined(expr)
    if not text or len(text) != expr.span.end - expr.span.start or not {".", "/"} & {*text}:
        return None
    first = expr
    while isinstance(first, ast.Binary):
        first = first.left
    return (first.parts[0], text) if isinstance(first, ast.Path) else None


def _joined(expr: ast.Expr) -> str:
    """The text of names that are joined by `/` and `-`, or ""."""
    if isinstance(expr, ast.Path):
        return expr.text
    if isinstance(expr, ast.Binary) and expr.operator in ("/", "-"):
        left, right = _joined(expr.left), _joined(expr.right)
        return f"{left}{expr.operator}{right}" if left and right else ""
    return ""


def _form_of(text: str, type_: Type) -> str:
    """Suggest the call that a bare path or id stands for: `jsonl("a.jsonl")`,
    `hf("Qwen/Qwen3-1.7B")`."""
    if text in type_.ctors:
        return text
    ending = text.rpartition(".")[2]
    here = text.startswith((".", "/", "~", "forgedsl:"))
    name = ending if ending in type_.ctors else "local" if here else "hf"
    return f'{name}("{text}")' if name in type_.ctors else ""


def _not_of_hub(text: str, type_: Type) -> str:
    """Return the help for an id that no hub repository can have: a file, a folder, or a URL."""
    url = r"(?:https?://)?(?:huggingface|hf)\.co/(?:datasets/)?([\w.-]+/[\w.-]+)"
    page = re.match(url, text) if ".co/" in text else None
    if page is not None:
        return f'write `hf("{page[1]}")`'
    ending = text.rpartition(".")[2]
    if re.fullmatch(r"|(?!.*(--|\.\.))[A-Za-z0-9][\w.-]*(/\w[\w.-]*)?", text, re.ASCII) and (
        ending not in {"jsonl", "json", "parquet", "csv", *type_.ctors} or ending == text
    ):
        return ""
    form = ending if ending in type_.ctors else "local" if "local" in type_.ctors else ""
    return (
        f'write `{form}("{text}")`' if form else "files are read by `jsonl(path)`, `parquet(path)`"
    )


def _known_words(type_: Type) -> str:
    """Return the help that lists the strings which a type accepts."""
    return "known are " + ", ".join(f'`"{word}"`' for word in type_.words)


def _takes(type_: Type, expr: ast.Path) -> bool:
    """True if a setting of this type accepts what `True`, `False` or `None` means in Python."""
    if expr.text == "None":
        return type_.optional or "none" in type_.words or type_.base in ("any", "deferred")
    return type_.base in ("bool", "any", "deferred")


def _unit_help(value: Any, type_: Type) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool | Seconds | Bytes)
    if isinstance(value, str) and (help_text := _unit_of_elsewhere(value, type_)):
        return help_text
    if type_.base in ("duration", "interval") and is_number:
        return f"write the unit: `{value:g}s`"
    if type_.base == "bytes" and is_number:
        return f"write the unit: `{value:g}GiB`"
    if type_.base == "int" and is_number and 0 < value < 1:
        return "it is a count, not a fraction"
    if isinstance(value, str) and (value in type_.words or _reads_as_number(value, type_)):
        return f"without quotes: `{value}`"
    if isinstance(value, str) and (help_text := equivalent(re.sub(r":\d+$|^torch\.", "", value))):
        return help_text if any(f"`{word}`" in help_text for word in type_.words) else ""
    clock = re.fullmatch(r"(\d+):(\d\d):00", value) if isinstance(value, str) else None
    if clock and type_.base == "duration":
        hours, minutes = map(int, clock.groups())
        return f"write `{f'{60 * hours + minutes}min' if minutes else f'{hours}h'}`"
    if type_.base == "list" and isinstance(value, str):
        return f"write a list: `[{show(value)}]`"
    if type_.base == "list" and is_number and type_.item and type_.item.base == "str":
        return 'write a list: `["NAME", "NAME"]`'
    if type_.base == "str" and is_number:
        return f'write it in quotes: `"{value}"`'
    return ""


def _unit_of_elsewhere(text: str, type_: Type) -> str:
    """Return the help for `20m` or `8GB`, which an override gives as text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text)
    unit = OTHER_UNITS.get(match[2].lower(), "") if match else ""
    kinds = ("bytes",) if unit.endswith("iB") else ("duration", "interval")
    return f"write `{match[1]}{unit}`" if match and unit and type_.base in kinds else ""


def _reads_as_number(text: str, type_: Type) -> bool:
    pattern = {"int": r"-?\d+", "float": r"-?\d+(\.\d+)?([eE][-+]?\d+)?",
               "duration": r"\d+(\.\d+)?(ms|s|min|h|d)", "interval": r"\d+(ms|s|min|h|d)?",
               "bytes": r"\d+(\.\d+)?[KMGT]iB"}.get(type_.base)  # fmt: skip
    return pattern is not None and re.fullmatch(pattern, text) is not None
