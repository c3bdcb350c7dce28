"""The program's process: runs the program, then serves calls of the judge's process.

It is never sent an expected value, and its answers are treated only as values. The program may
manipulate this module too, but it can only lie about the results of its calls.
"""

from __future__ import annotations

import builtins
import operator
import os

from .calls import module
from .wire import BASES, PLAIN, BrokenError, Link, quoted

TYPE_CHECKING = False  # `typing` at run time costs more than all the other imports
if TYPE_CHECKING:
    from typing import Any

CASE = "<case>"
EXACT: dict[type, Any] = {
    int: int.__index__, float: float.__float__, complex: complex.__pos__,
    str: lambda value: str.__add__(value, ""), bytes: lambda value: bytes.__add__(value, b""),
}  # fmt: skip
"""plain value of an instance of a subclass, without calling methods of the subclass"""
DO: dict[str, Any] = {
    "get": getattr, "set": setattr, "del": delattr, "iter": iter, "next": next, "len": len,
    "bool": bool, "str": str, "repr": repr, "type": type, "isinstance": isinstance,
    "issubclass": issubclass, "round": round, "int": int, "float": float, "complex": complex,
    "divmod": divmod, "format": format, "reversed": reversed,
}  # fmt: skip


class Given:
    """A function or an iterator of the case, which the program may call."""

    def __init__(self, link: Program, number: int) -> None:
        self._link, self._number = link, number

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._link.ask("call", self._number, args, tuple(named.items()))

    def __iter__(self) -> Given:
        return self

    def __next__(self) -> Any:
        return self._link.ask("next", self._number)


class Program(Link):
    """Serves until the other end is gone."""

    def __init__(self, reading: int, writing: int, names: dict[str, Any]) -> None:
        super().__init__(reading, writing, -1)
        self._names = names
        self._objects: dict[int, Any] = {}
        self._objects_by_id: dict[int, int] = {}
        self._classes: dict[str, type] = {}
        self._made: Any = None

    def serve(self) -> None:
        """Answer until the other end is gone."""
        try:
            while True:
                self.reply(self.receive()[1])
        except BrokenError:
            return

    def answer(self, question: Any) -> Any:
        kind, *given = question
        match kind:
            case "name":
                return self._named(given[0])
            case "call" | "make":
                value = given[0](*given[1], **dict(given[2]))
                self._made = value if kind == "make" else None
                return value
            case "op":
                return getattr(operator, given[0])(*given[1])
            case "plain":
                return _plain(given[0])
            case "await":
                import asyncio

                return asyncio.run(given[0])
            case "imports":
                exec(compile(given[0], CASE, "exec", dont_inherit=True), self._names)
                return None
            case "class":
                exec(compile(given[1], CASE, "exec", dont_inherit=True), self._names)
                self._classes[given[0]] = self._names[given[0]]
                return None
        return DO[kind](*given)

    def _named(self, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise NameError(f"name {name!r} is not defined")

    # ---- things of its own

    def class_named(self, name: str) -> type:
        return self._classes[name]

    def name_of(self, kind: type) -> str:
        name = getattr(kind, "__name__", "")
        return name if self._classes.get(name) is kind else ""

    def tag(self, value: Any) -> str:
        if isinstance(value, Given):
            return f'{{"c":{value._number}}}'
        made, self._made = self._made, None
        if isinstance(value, PLAIN) and value is not made:
            return self.encoded(_plain(value))
        if isinstance(value, type) and issubclass(value, BaseException):
            return f'{{"E":{self._class_of_errors(value)}}}'
        if (name := self.name_of(value)) if isinstance(value, type) else "":
            return f'{{"C":{quoted(name)}}}'
        number = self._number_of(value)
        if hasattr(type(value), "__await__") and hasattr(value, "cr_await"):
            return f'{{"w":{number}}}'
        base = next((kind for kind in BASES if isinstance(value, kind)), None)
        return f'{{"o":[{number},{quoted(base.__name__) if base else "null"}]}}'

    def _number_of(self, value: Any) -> int:
        found = self._objects_by_id.get(id(value))
        if found is None:
            found = self._objects_by_id[id(value)] = len(self._objects)
            self._objects[found] = value
        return found

    def _class_of_errors(self, kind: type) -> str:
        base = next(k for k in kind.__mro__ if getattr(builtins, k.__name__, None) is k)
        return (
            f"[{self._number_of(kind)},{quoted(str(kind.__module__))},"
            f"{quoted(kind.__name__)},{quoted(base.__name__)}]"
        )

    def untag(self, tag: str, inner: Any) -> Any:
        match tag:
            case "o":
                return self._objects[inner]
            case "c":
                return Given(self, inner)
            case "C":
                return self._classes[inner]
            case "e":
                # an exception raised by a function of the case
                return getattr(builtins, inner, RuntimeError)()
        raise ValueError(tag)

    def error(self, error: BaseException) -> str:
        kind = self._class_of_errors(type(error))
        try:
            return f"[{kind},{self.encoded(tuple(error.args))}]"
        except Exception:
            return f"[{kind},{self.encoded(())}]"


def _plain(value: Any) -> Any:
    """Convert an instance of a subclass of a plain type to that type."""
    kind: Any = next(kind for kind in BASES if isinstance(value, kind))
    if issubclass(kind, dict):
        return dict(dict.items(value))
    if kind in EXACT:
        return EXACT[kind](value)
    return kind(kind.__iter__(value))


def run(spec: dict[str, Any], result: int) -> None:
    """Execute the program, then serve."""
    names = module()
    reading, writing = spec["link"]
    try:
        exec(compile(spec["code"], "<answer>", "exec", dont_inherit=True), names)
    except BaseException:
        os._exit(0)  # the judge sees that the pipe is closed
    Program(reading, writing, names).serve()
