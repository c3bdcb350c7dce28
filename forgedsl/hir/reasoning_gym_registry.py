"""Tasks of reasoning-gym and their configurations, read from its files; it is not imported.

    reasoning_gym/arithmetic/leg_counting.py
        register_dataset(DATASET_NAME, LegCountingDataset, LegCountingConfig, ...)   the name
        class LegCountingConfig: min_animals: int = 3                      fields, types, defaults
            def validate(self): assert self.max_animals >= self.min_animals, "..."     conditions

Names are found by searching texts; only the file of one task is parsed. A condition is checked here
if it consists of arithmetic and comparisons of fields. A run checks all conditions.
hir.reasoning_gym_calls compares a call of the language with what is read.
"""

from __future__ import annotations

import importlib.util
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.records import dataclass, replace
from forgedsl.settings import ANY, BOOL, FLOAT, INT, STR, Parameter, Type

if TYPE_CHECKING:
    import ast as python

MODULE = "reasoning_gym"
PACKAGE = "reasoning-gym"
COMPOSITE = "composite"
"""the task that mixes other tasks; not accepted, because `mixture` of the language does the same"""
REGISTERED = re.compile(r'\bregister_dataset\(\s*(?:name\s*=\s*)?(?:"([\w-]+)"|([A-Za-z_]\w*))')
NAMED = r'^{}\s*(?::[^=\n]*)?=\s*"([\w-]+)"'
SCALARS = {"int": INT, "float": FLOAT, "str": STR, "bool": BOOL}
LISTS = ("list", "tuple", "Sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a task.

    `params` are its fields besides `seed` and `size`, with their defaults (None for a default that
    is not a literal). `closed` maps fields that no value of the language can set to the names of
    their types. `conditions` are the expressions and texts of the conditions of `validate`.
    """

    params: tuple[Parameter, ...] = ()
    closed: Mapping[str, str]
    conditions: tuple[tuple[python.expr, str], ...] = ()


def version() -> str:
    """Return the version of the installed package; "" if there is none."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


def tasks() -> Mapping[str, Path] | None:
    """Return the file of each task of the installed package; None if there is no package."""
    folder = _folder()
    return None if folder is None else _tasks(folder)


def config_of(task: str) -> Config | None:
    """Read the configuration of a task; None if it cannot be read."""
    path = (tasks() or {}).get(task)
    return None if path is None else _config(task, path)


def refused(config: Config, values: Mapping[str, Any]) -> str:
    """Return the text of the first condition that the values violate, with defaults for the other
    fields; "" if none is violated. Conditions that cannot be evaluated here are skipped."""
    known = {each.name: each.default for each in config.params if each.default is not None}
    known |= values
    for test, text in config.conditions:
        try:
            held = _value(test, known)
        except (_Unknown, TypeError, ZeroDivisionError):
            continue
        if not held:
            return text
    return ""


def _folder() -> Path | None:
    try:
        found = importlib.util.find_spec(MODULE)
    except (ValueError, ImportError):
        return None
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None


@cache
def _tasks(folder: Path) -> Mapping[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*.py")):
        try:
            text = path.read_text("utf-8")
        except (OSError, ValueError):
            continue
        for literal, constant in REGISTERED.findall(text):
            named = re.search(NAMED.format(constant), text, re.M) if constant else None
            name = literal or (named[1] if named is not None else "")
            if name:
                found[name] = path
    return found


@cache
def _config(task: str, path: Path) -> Config | None:
    import ast as python

    try:
        tree = python.parse(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    constants = {
        target.id: _literal(node.value)
        for node in tree.body if isinstance(node, python.Assign)
        for target in node.targets if isinstance(target, python.Name)
    }  # fmt: skip
    for node in python.walk(tree):
        if not isinstance(node, python.Call) or _last(node.func) != "register_dataset":
            continue
        given = dict(zip(("name", "dataset_cls", "config_cls"), node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        name, written = given.get("name"), given.get("config_cls")
        if written is None or task not in (_literal(name), constants.get(_last(name))):
            continue
        for item in tree.body:
            if isinstance(item, python.ClassDef) and item.name == _last(written):
                return None if item.bases else _read(item)
    return None


def _read(config: python.ClassDef) -> Config:
    import ast as python

    params, closed, conditions = [], {}, []
    for item in config.body:
        if isinstance(item, python.AnnAssign) and isinstance(item.target, python.Name):
            name, type_ = item.target.id, _type(item.annotation)
            if name in ("seed", "size"):
                continue
            if type_ is None:
                closed[name] = python.unparse(item.annotation)
                continue
            default = _literal(item.value)
            default = list(default) if isinstance(default, tuple) else default
            params.append(Parameter(name=name, type=type_, default=default, keyword=True))
        elif isinstance(item, python.FunctionDef) and item.name == "validate":
            for each in item.body:
                if isinstance(each, python.Assert):
                    said = _literal(each.msg)
                    text = said if isinstance(said, str) else python.unparse(each.test)
                    conditions.append((each.test, text.replace("self.", "")))
    return Config(params=tuple(params), closed=closed, conditions=tuple(conditions))


def _type(annotation: python.expr) -> Type | None:
    """Return the type of a field; None of a class that has no value in the language."""
    import ast as python

    match annotation:
        case python.Name(id=name) if name in SCALARS:
            return SCALARS[name]
        case python.Name(id=name) if name in LISTS:
            return Type(base="list", item=ANY)
        case python.Subscript(value=python.Name(id="Optional"), slice=inner):
            found = _type(inner)
            return None if found is None else replace(found, optional=True)
        case python.BinOp(left=left, op=python.BitOr(), right=python.Constant(value=None)):
            found = _type(left)
            return None if found is None else replace(found, optional=True)
        case python.Subscript(value=python.Name(id="Literal"), slice=inner):
            words = inner.elts if isinstance(inner, python.Tuple) else [inner]
            texts = [_literal(word) for word in words]
            listed = tuple(text for text in texts if isinstance(text, str))
            return Type(base="str", words=listed) if len(listed) == len(texts) else None
        case python.Subscript(value=python.Name(id=name), slice=inner) if name in LISTS:
            parts = inner.elts if isinstance(inner, python.Tuple) else [inner]
            item = _type(parts[0])
            return None if item is None else Type(base="list", item=item)
    return None


# ---- conditions


class _Unknown(Exception):
    """An expression that cannot be evaluated here."""


COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le,
    "Gt": operator.gt, "GtE": operator.ge, "In": lambda a, b: a in b,
    "NotIn": lambda a, b: a not in b, "Is": operator.is_, "IsNot": operator.is_not,
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul,
}  # fmt: skip
"""operators by the name of their node"""


def _value(node: python.expr, fields: Mapping[str, Any]) -> Any:
    """Evaluate an expression of literals and fields (`self.NAME`).

    Raises:
        _Unknown: it has other parts.
    """
    import ast as python

    match node:
        case python.Constant(value=value):
            return value
        case python.Attribute(value=python.Name(id="self"), attr=name) if name in fields:
            return fields[name]
        case python.BoolOp(op=op, values=parts):
            wanted = isinstance(op, python.Or)
            held = [bool(_value(part, fields)) for part in parts]
            return wanted in held if wanted else all(held)
        case python.UnaryOp(op=python.Not(), operand=inner):
            return not _value(inner, fields)
        case python.UnaryOp(op=python.USub(), operand=inner):
            return -_value(inner, fields)
        case python.BinOp(left=left, op=op, right=right) if type(op).__name__ in COMPARED:
            sides = _value(left, fields), _value(right, fields)
            if any(isinstance(side, str | list) for side in sides):
                raise _Unknown
            return COMPARED[type(op).__name__](*sides)
        case python.Compare(left=left, ops=ops, comparators=others):
            values = [_value(each, fields) for each in (left, *others)]
            pairs = zip(values, ops, values[1:], strict=False)
            return all(COMPARED[type(op).__name__](a, b) for a, op, b in pairs)
        case python.Call(func=python.Name(id="len"), args=[inner]):
            return len(_value(inner, fields))
        case python.List(elts=parts) | python.Tuple(elts=parts) | python.Set(elts=parts):
            return [_value(part, fields) for part in parts]
    raise _Unknown


def _last(expr: Any) -> str:
    """Return the last part of a dotted name."""
    return str(getattr(expr, "attr", getattr(expr, "id", "")))


def _literal(expr: Any) -> Any:
    """Return the value of a literal; None of any other expression."""
    import ast as python

    try:
        return None if expr is None else python.literal_eval(expr)
    except (ValueError, TypeError, SyntaxError):
        return None
