"""Compares the arguments of a command with those that its Python script declares with argparse.

    parser.add_argument("--task", choices=TASKS)      "--tsak" is no argument, "sum" no choice
    parser.add_argument("--steps", type=int)          "--steps", "many" is no int

The script is read, never executed. Only what argparse itself would refuse is reported. Nothing is
checked if a script does what cannot be read: several parsers, subcommands, arguments made in loops.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.records import dataclass

PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
NUMBERS: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float}
FLAGS = ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")
"""actions without a value"""
UNREADABLE = ("add_subparsers", "parse_known_args", "parse_known_intermixed_args")
CHANGING = ("add", "append", "extend", "insert", "pop", "remove", "setdefault", "update")
"""methods after which a list or dictionary is not what its module wrote"""
MOST = 1 << 30


class Unreadable(Exception):
    """A script whose arguments cannot be known without running it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of a script: its `flags`, none if it is positional. It takes from `least` to
    `most` values, of the type `number` or one of `choices`, if there are any."""

    flags: tuple[str, ...] = ()
    name: str
    least: int = 1
    most: int = 1
    required: bool = False
    choices: tuple[str, ...] = ()
    number: str = ""


def script_of(command: list[str], folder: Path) -> int:
    """Return the place of the Python script of a command, which the words after it are for; 0 if
    there is none beside the .forge file."""
    if not command or not PYTHON.fullmatch(Path(command[0]).name):
        return 0
    for index, word in enumerate(command[1:], 1):
        if word.endswith(".py"):
            return index if (folder / word).is_file() else 0
        if not re.fullmatch(r"-[uBEsSIOqvb]+", word):  # options of Python without a value
            return 0
    return 0


def problem_of(command: list[str], folder: Path) -> tuple[int, str, str] | None:
    """Return the first mistake in the arguments of a command's script: the place of its word, a
    message and help; None if there is none, or if they cannot be checked."""
    place = script_of(command, folder)
    if not place:
        return None
    try:
        known = read_arguments((folder / command[place]).read_text("utf-8"))
    except (Unreadable, OSError, ValueError, SyntaxError, RecursionError):
        return None
    return next(_problems(command, place, known), None) if known is not None else None


# ---- words


def _problems(
    command: list[str], place: int, known: tuple[Argument, ...]
) -> Iterator[tuple[int, str, str]]:
    script = command[place]
    options = {flag: each for each in known for flag in each.flags}
    positional: list[tuple[int, str]] = []
    seen: set[str] = set()
    index, only_positional = place + 1, False
    while index < len(command):
        word = command[index]
        if only_positional or not _is_option(word):
            positional.append((index, word))
        elif word == "--":
            only_positional = True
        elif word in ("-h", "--help"):
            return
        else:
            flag, joined, value = word.partition("=")
            full = _full(flag, options)
            if full is None and flag[:2] in options:
                return  # `-xVALUE` or `-xy`: not taken apart here
            if full is None:
                listed = sorted(f for f in options if f.startswith("--"))
                help_ = did_you_mean(nearest(flag, listed)) or f"it has {', '.join(listed)}"
                yield index, f"`{script}` has no argument `{flag}`", help_ if listed else ""
                return
            each = options[full]
            seen.add(each.name)
            values = [(index, value)] if joined else []
            while not joined and len(values) < each.most and index + 1 < len(command):
                if _is_option(command[index + 1]):
                    break
                index += 1
                values.append((index, command[index]))
            yield from _values(script, full, each, values, index)
        index += 1
    yield from _positional(script, place, [each for each in known if not each.flags], positional)
    for each in known:
        if each.flags and each.required and each.name not in seen:
            yield place, f"`{script}` needs the argument `{each.name}`", ""


def _is_option(word: str) -> bool:
    """Return True for `-x` and `--xy`; numbers and placeholders are values."""
    if " " in word or re.fullmatch(r"-\d*\.?\d+", word):
        return False
    return word.startswith("-") and len(word) > 1


def _full(flag: str, options: Mapping[str, Argument]) -> str | None:
    """Return the option that a word names: argparse accepts a beginning that only one has."""
    if flag in options:
        return flag
    begun = [each for each in options if each.startswith(flag) and flag.startswith("--")]
    return begun[0] if len(begun) == 1 else None


def _values(
    script: str, shown: str, each: Argument, values: list[tuple[int, str]], index: int
) -> Iterator[tuple[int, str, str]]:
    if len(values) < each.least:
        yield index, f"`{shown}` of `{script}` needs a value", ""
    elif len(values) > each.most:
        yield index, f"`{shown}` of `{script}` takes no value", ""
    for place, value in values:
        if "{" in value:  # a placeholder, whose value the run knows
            continue
        if each.choices and value not in each.choices:
            close = did_you_mean(nearest(value, each.choices))
            listed = ", ".join(f"`{choice}`" for choice in each.choices)
            yield place, f"`{shown}` of `{script}` cannot be `{value}`", close or f"it is {listed}"
        elif each.number and not _is_a(each.number, value):
            yield place, f"`{shown}` of `{script}` must be of type {each.number}: `{value}`", ""


def _is_a(number: str, value: str) -> bool:
    try:
        NUMBERS[number](value)
    except ValueError:
        return False
    return True


def _positional(
    script: str, place: int, known: list[Argument], given: list[tuple[int, str]]
) -> Iterator[tuple[int, str, str]]:
    least, most = sum(each.least for each in known), sum(each.most for each in known)
    if len(given) > most:
        index, word = given[most]
        yield index, f"`{script}` has no place for the argument `{word}`", ""
    elif len(given) < least:
        missing = [each.name for each in known if each.least][len(given) :] or [known[-1].name]
        yield place, f"`{script}` needs the argument `{missing[0]}`", ""
    elif all(each.least == each.most == 1 for each in known):
        for each, value in zip(known, given, strict=True):
            yield from _values(script, each.name, each, [value], value[0])


# ---- the script


def read_arguments(text: str) -> tuple[Argument, ...] | None:
    """Return the arguments that the argparse parser of a script has; None if it has no parser.

    Raises:
        Unreadable: they are not literals of the script.
        SyntaxError, ValueError: the text is not Python.
    """
    if "ArgumentParser" not in text:
        return None
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [_called(call) for call in calls]
    made = [call for call, name in zip(calls, names, strict=True) if name == "ArgumentParser"]
    if len(made) != 1 or any(name in UNREADABLE for name in names):
        raise Unreadable
    if made[0].args or {each.arg for each in made[0].keywords} - {"description", "prog", "epilog"}:
        raise Unreadable
    constants = _constants(tree)
    adding = {id(each) for each, name in zip(calls, names, strict=True) if name == "add_argument"}
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While | ast.If | ast.comprehension) and any(
            id(inner) in adding for inner in ast.walk(node) if not _is_main(node)
        ):
            raise Unreadable  # how often it is called, or if at all, is not known
    return tuple(_argument(call, constants) for call in calls if id(call) in adding)


def _is_main(node: ast.AST) -> bool:
    """Return True for `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in {
        each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)
    }


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _constants(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """Return the texts of the module's lists, tuples and dictionaries, by their names."""
    found: dict[str, tuple[str, ...]] = {}
    assigned: set[str] = set()
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                assert isinstance(node, ast.Assign | ast.AnnAssign)
                texts = _texts(node.value, {})
                found.pop(target.id, None)
                if texts is not None and target.id not in assigned:
                    found[target.id] = texts
                assigned.add(target.id)
    for changed in ast.walk(tree):
        match changed:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                if method in CHANGING:
                    found.pop(name, None)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                found.pop(name, None)
    return found


def _texts(
    node: ast.expr | None, constants: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """Return the texts of a list, tuple, set or dictionary (its keys), or of a constant's name."""
    match node:
        case ast.Name(id=name):
            return constants.get(name)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            given: list[ast.expr | None] = [*items]
        case ast.Dict(keys=keys):
            given = [*keys]
        case _:
            return None
    texts = [each.value for each in given if isinstance(each, ast.Constant)]
    whole = len(texts) == len(given) and all(isinstance(text, str) for text in texts)
    return tuple(map(str, texts)) if whole else None


def _argument(call: ast.Call, constants: Mapping[str, tuple[str, ...]]) -> Argument:
    flags = [each.value if isinstance(each, ast.Constant) else None for each in call.args]
    given = {each.arg: each.value for each in call.keywords}
    if not flags or not all(isinstance(flag, str) for flag in flags) or None in given:
        raise Unreadable
    names = [str(flag) for flag in flags]
    named = all(name.startswith("-") for name in names)
    action = _literal(given.get("action"), "store")
    if action not in ("store", "append", "extend", *FLAGS):
        raise Unreadable
    least, most = (0, 0) if action in FLAGS else _count(_literal(given.get("nargs"), None))
    type_ = given.get("type")
    choices: tuple[str, ...] = ()
    if "choices" in given:
        found = _texts(given["choices"], constants)
        is_text = type_ is None or (isinstance(type_, ast.Name) and type_.id == "str")
        choices = found if found is not None and is_text else ()
    return Argument(
        flags=tuple(names) if named else (),
        name=next((n for n in names if n.startswith("--")), names[0]),
        least=least,
        most=most,
        required=_literal(given.get("required"), False) is True,
        choices=choices,
        number=type_.id if isinstance(type_, ast.Name) and type_.id in NUMBERS else "",
    )


def _literal(node: ast.expr | None, default: Any) -> Any:
    if node is None:
        return default
    if not isinstance(node, ast.Constant):
        raise Unreadable
    return node.value


def _count(nargs: Any) -> tuple[int, int]:
    """Return how many values an argument takes: at least, and at most."""
    known = {None: (1, 1), "?": (0, 1), "*": (0, MOST), "+": (1, MOST)}
    if isinstance(nargs, int) and nargs > 0:
        return nargs, nargs
    if nargs not in known:
        raise Unreadable
    return known[nargs]
