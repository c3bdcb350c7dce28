"""Environments that are registered with gymnasium, read from Python files that are not imported.

    gymnasium/envs/__init__.py   register(id="FrozenLake-v1", entry_point="...:FrozenLakeEnv", ...)
    toy_text/frozen_lake.py      parameters of `__init__`, render modes, spaces
    envs/maze.py                 both, in a file beside the .forge file

A space is known if its expression has literals only. What cannot be read here is checked when
a run makes the environment. hir.gymnasium_calls compares a call of the language with what is read.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.hir.pyclass import classes
from forgedsl.records import dataclass
from forgedsl.settings import ANY, BOOL, FLOAT, INT, STR, Parameter, Type

if TYPE_CHECKING:
    import ast as python

PACKAGE = "gymnasium"
TYPES = {
    "int": INT, "float": FLOAT, "str": STR, "bool": BOOL, "list": Type(base="list", item=ANY),
    "tuple": Type(base="list", item=ANY),
}  # fmt: skip
SPACES = (
    "Box", "Dict", "Discrete", "Graph", "MultiBinary", "MultiDiscrete", "OneOf", "Sequence", "Text",
    "Tuple",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A space of gymnasium: its class, the number of actions of a Discrete one, and the spaces in
    it by key (Dict) or place (Tuple)."""

    name: str
    size: int | None = None
    inner: dict[str, Space]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the class of an environment says. A space is None where its expression does not say it;
    `params` is None if the class accepts any argument, inherits `__init__`, or cannot be read."""

    params: tuple[Parameter, ...] | None = None
    modes: tuple[str, ...] = ()
    observation: Space | None = None
    action: Space | None = None


def version() -> str:
    """Return the version of the installed package; "" if there is none."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An environment that is registered in `tree`: its entry point, "module:Class" or a class."""

    point: python.expr
    tree: python.Module
    file: Path | None


def registered(module: str = "", file: Path | None = None) -> dict[str, Entry] | None:
    """Return the environments that a module of an installed package (gymnasium itself, if none is
    given) or a Python file registers with literal names, by id. None if it cannot be read."""
    import ast as python

    tree = _parsed(file) if file is not None else _tree(module or f"{PACKAGE}.envs")
    if tree is None:
        return None
    found = {}
    for node in python.walk(tree):
        if not isinstance(node, python.Call) or _last(node.func) != "register":
            continue
        given = dict(zip(("id", "entry_point"), node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        name = _literal(given.get("id"))
        if isinstance(name, str) and "entry_point" in given:
            found[name] = Entry(point=given["entry_point"], tree=tree, file=file)
    return found


def described(entry: Entry) -> Described:
    """Read the class of an environment."""
    import ast as python

    text = _literal(entry.point)
    if not isinstance(text, str):
        return _class(entry.tree, _last(entry.point))
    module, _, name = text.partition(":")
    if entry.file is not None and module == entry.file.stem:
        return _class(entry.tree, name)
    other = _tree(module)
    if other is None:
        return Described()
    for node in other.body:  # a package may import the class from a module of its own
        if isinstance(node, python.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            other = _tree(f"{module}.{node.module}" if node.level else str(node.module)) or other
            break
    return _class(other, name)


def _class(tree: python.Module, name: str) -> Described:
    import ast as python

    for each, _, items in classes(tree):
        if each == name:
            init = items.get("__init__")
            spaces = _spaces(items.values())
            return Described(
                params=_parameters(init) if isinstance(init, python.FunctionDef) else None,
                modes=_modes(items.get("metadata")),
                observation=spaces.get("observation_space"),
                action=spaces.get("action_space"),
            )
    return Described()


def _tree(module: str) -> python.Module | None:
    """Parse a module of an installed package. Only the place of its top package is looked up."""
    top, *rest = module.split(".")
    try:
        found = importlib.util.find_spec(top)
    except (ValueError, ImportError):
        return None
    if found is not None and not rest and str(found.origin).endswith(".py"):
        return _parsed(Path(str(found.origin)))
    if found is None or not found.submodule_search_locations:
        return None
    base = Path(next(iter(found.submodule_search_locations)), *rest)
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return _parsed(path)
    return None


def _parsed(path: Path) -> python.Module | None:
    import ast as python

    try:
        return python.parse(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _parameters(init: python.FunctionDef) -> tuple[Parameter, ...] | None:
    """Return the parameters after `self`, each with a default; None with `**kwargs`."""
    arguments = init.args
    if arguments.kwarg is not None:
        return None
    named = [*arguments.posonlyargs, *arguments.args][1:]
    plain = [None] * (len(named) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(named, plain, strict=False), *zip(
        arguments.kwonlyargs, arguments.kw_defaults, strict=True
    )]  # fmt: skip
    return tuple(
        Parameter(name=arg.arg, type=_type(arg.annotation, default), default=None, keyword=True)
        for arg, default in pairs
    )


def _type(annotation: python.expr | None, default: python.expr | None) -> Type:
    """Return the type of a parameter: that of its annotation, else of its default."""
    import ast as python

    from forgedsl.records import replace

    match annotation:
        case python.BinOp(left=left, op=python.BitOr(), right=python.Constant(value=None)):
            return replace(_type(left, None), optional=True)
        case python.Name(id=name) | python.Subscript(value=python.Name(id=name)):
            return TYPES.get(name, ANY)
        case None if isinstance(default, python.Constant) and default.value is not None:
            kind = type(default.value).__name__
            return TYPES.get("float" if kind == "int" else kind, ANY)  # `gravity = 10` may be 9.8
    return ANY


def _modes(item: python.stmt | None) -> tuple[str, ...]:
    """Return the render modes of `metadata = {"render_modes": ["ansi"]}`."""
    import ast as python

    value = item.value if isinstance(item, python.Assign | python.AnnAssign) else None
    if isinstance(value, python.Dict):
        for key, listed in zip(value.keys, value.values, strict=True):
            found = _literal(listed) if _literal(key) == "render_modes" else None
            if isinstance(found, list | tuple):
                return tuple(map(str, found))
    return ()


def _spaces(body: Any) -> dict[str, Space | None]:
    """Return the spaces that statements assign: "observation_space", "action_space". None where
    they assign different ones."""
    numbers: dict[str, int] = {}
    found: dict[str, Space | None] = {}
    for name, value in _assigned(body):
        number = _literal(value)
        if isinstance(number, int):
            numbers[name] = number
        if name in ("observation_space", "action_space"):
            space = _space(value, numbers)
            found[name] = space if found.get(name, space) == space else None
    return found


def _assigned(body: Any) -> Iterator[tuple[str, python.expr]]:
    """Yield names and values of assignments, in order, those in branches too: `self.nA = nA = 4`
    assigns both."""
    import ast as python

    for statement in body:
        for node in python.walk(statement):
            if isinstance(node, python.Assign):
                yield from ((_last(target), node.value) for target in node.targets)
            elif isinstance(node, python.AnnAssign) and node.value is not None:
                yield _last(node.target), node.value


def _space(value: python.expr, numbers: dict[str, int]) -> Space | None:
    import ast as python

    if not isinstance(value, python.Call) or (name := _last(value.func)) not in SPACES:
        return None
    first = value.args[0] if value.args else None
    size, inner = None, dict[str, Space]()
    if name == "Discrete" and first is not None:
        given = numbers.get(_last(first), _literal(first))
        size = given if isinstance(given, int) else None
    parts: list[tuple[str, Any]] = []
    if name == "Tuple" and isinstance(first, python.Tuple | python.List):
        parts = [(str(index), each) for index, each in enumerate(first.elts)]
    elif name == "Dict" and isinstance(first, python.Dict):
        parts = [(str(_literal(k)), v) for k, v in zip(first.keys, first.values, strict=True)]
    elif name == "Dict":
        parts = [(str(each.arg), each.value) for each in value.keywords]
    for key, each in parts:
        read = _space(each, numbers)
        if read is None:
            return None
        inner[key] = read
    return None if name in ("Tuple", "Dict") and not inner else Space(
        name=name, size=size, inner=inner
    )  # fmt: skip


def _last(expr: python.expr) -> str:
    """Return the last part of a dotted name."""
    return str(getattr(expr, "attr", getattr(expr, "id", "")))


def _literal(expr: python.expr | None) -> Any:
    """Return the value of a literal; None of any other expression."""
    import ast as python

    try:
        return None if expr is None else python.literal_eval(expr)
    except (ValueError, TypeError, SyntaxError):
        return None
