"""The judge's process: executes the cases, as `cases.py` prepared them, without the program.

A name that no case binds belongs to the program: it stands for an object in the program's process.
Its calls are carried out there, and plain data that they return is data here. So every comparison,
every `sorted` and every expected value stays in this process.

    cases -> exec -> calls of the program's names -> verdicts, one line for each case

An object that the program returns cannot decide a comparison of a case: its own methods for `==`,
`in`, `+` or `startswith` are not called. If its class inherits from a plain type, such as
`class Answer(int)`, its plain value is compared; otherwise it equals no plain data. The exception
is an object that the case made by calling a class (a capitalized name), such as `Stack()`, since
its methods are what is tested.
"""

from __future__ import annotations

import builtins
import operator
import os

from .wire import BASES_BY_NAME, BrokenError, Link, quoted

TYPE_CHECKING = False  # `typing` at run time costs more than all the other imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VERDICTS = frozenset(
    name for kind in (str, bytes, int, float, list, dict, set, frozenset, tuple)
    for name in dir(kind)
    if name.startswith(("is", "starts", "ends", "count", "find", "index", "rfind", "rindex"))
)  # fmt: skip
"""methods of plain types that cases use in assertions, such as `startswith` and `count`. On an
object of the program they are called in this process, on its plain value"""
BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor",
    "lshift", "rshift",
)  # fmt: skip
ITERATORS = ("builtins", "itertools", "case")
ORDER = ("lt", "le", "gt", "ge")


class RefusedError(BaseException):
    """A case passes an object that cannot be sent to the program: an error in the data."""


class Remote:
    """An object in the program's process. `own`: a case made the object, from a class. `maker`: the
    object is a class."""

    __slots__ = ("_base", "_link", "_number", "maker", "own")

    def __init__(self, link: Judge, number: int, base: type | None) -> None:
        self._link, self._number, self._base = link, number, base
        self.own = self.maker = False

    def __call__(self, *args: Any, **named: Any) -> Any:
        kind = "make" if self.maker else "call"
        found = self._link.ask(kind, self, args, tuple(named.items()))
        if self.maker and isinstance(found, Remote):
            found.own = True
        return found

    def __getattr__(self, name: str) -> Any:
        if not self.own and name in VERDICTS:
            return getattr(self._plain(), name)
        return _maker(name, self._link.ask("get", self, name))

    def _plain(self) -> Any:
        if self._base is None:
            raise TypeError("the program returned an object where the test needs plain data")
        return self._link.ask("plain", self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return Remote if self._base is None else self._base

    def __eq__(self, other: object) -> bool:
        if type(other) is Remote:
            if self.own or other.own:
                return self._link.ask("op", "eq", (self, other)) is True
            if self._base is None or other._base is None:
                return self._number == other._number
            return bool(self._plain() == other._plain())
        return self._base is not None and bool(self._plain() == other)

    def __hash__(self) -> int:
        return self._number if self._base is None else hash(self._plain())

    def __contains__(self, item: object) -> bool:
        if self.own:
            return self._link.ask("op", "contains", (self, item)) is True
        return any(found is item or found == item for found in self)

    def __iter__(self) -> Any:
        return self._link.ask("iter", self)

    def __next__(self) -> Any:
        return self._link.ask("next", self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Remote.__slots__:
            object.__setattr__(self, name, value)
        else:
            self._link.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._link.ask("del", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("op", "getitem", (self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.ask("op", "setitem", (self, key, value))

    def __delitem__(self, key: Any) -> None:
        self._link.ask("op", "delitem", (self, key))

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Remote and self._link.ask("isinstance", value, self) is True

    def __subclasscheck__(self, value: Any) -> bool:
        return type(value) is Remote and self._link.ask("issubclass", value, self) is True

    def __enter__(self) -> Any:
        found = self._link.ask("get", self, "__enter__")()
        same = type(found) is Remote and found._number == self._number
        return self if same else found

    def __exit__(self, *error: Any) -> bool:
        return self._link.ask("get", self, "__exit__")(None, None, None) is True

    def __round__(self, *digits: int) -> Any:
        return self._link.ask("round", self, *digits)


def _remote_method(kind: str, expected: type | None) -> Callable[..., Any]:
    def asks(self: Remote, *args: Any) -> Any:
        found = self._link.ask(kind, self, *args)
        if expected is not None and type(found) is not expected:
            raise TypeError(f"{kind} of an object of the program is not a {expected.__name__}")
        return found

    return asks


def _operator(name: str, turned: bool, order: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name)

    def operate(self: Remote, other: Any) -> Any:
        pair = (other, self) if turned else (self, other)
        if self.own or (type(other) is Remote and other.own):
            found = self._link.ask("op", name, pair)
            if order:
                return found is True
            if type(found) is Remote:
                found.own = True
            return found
        return function(*(v._plain() if type(v) is Remote else v for v in pair))

    return operate


def _unary(name: str) -> Callable[..., Any]:
    return lambda self: self._link.ask("op", name, (self,))


def _add_remote_methods() -> None:
    kinds = {
        "len": int, "bool": bool, "str": str, "repr": str, "int": int, "float": float,
        "complex": complex, "format": str, "reversed": None,
    }  # fmt: skip
    for name, kind in kinds.items():
        setattr(Remote, f"__{name}__", _remote_method(name, kind))
    for name in BINARY:
        short = name.rstrip("_")
        setattr(Remote, f"__{short}__", _operator(name, False))
        setattr(Remote, f"__r{short}__", _operator(name, True))
    for name in ORDER:
        setattr(Remote, f"__{name}__", _operator(name, False, order=True))
    for name in ("neg", "pos", "abs", "invert", "index"):
        setattr(Remote, f"__{name}__", _unary(name))


_add_remote_methods()


def _maker(name: str, value: Any) -> Any:
    if type(value) is Remote and name[:1].isupper():
        value.maker = value.own = True
    return value


class Names(dict):  # type: ignore[type-arg]
    """Names of a case; a name that nothing binds belongs to the program."""

    link: Judge

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return _maker(name, self.link.ask("name", name))


class Judge(Link):
    """Sends calls to the program, and answers when the program calls a function of the case."""

    def __init__(self, reading: int, writing: int, spec: dict[str, Any]) -> None:
        super().__init__(reading, writing, 1)
        self.imports: str = spec["imports"]
        self.sources: dict[str, str] = spec["classes"]
        self.names = Names({
            "__name__": "case", "_same": _same, "_type": self._type,
            "_from_program": self._from_program,
        })  # fmt: skip
        self.names.link = self
        self._known: dict[str, type] = {}
        self._given: list[Any] = []
        self._errors: dict[int, type[BaseException]] = {}
        self._reported = False

    def _from_program(self, name: str) -> Any:
        return _maker(name, self.ask("name", name))

    def _type(self, value: Any) -> Any:
        return _maker("A", self.ask("type", value)) if type(value) is Remote else type(value)

    def answer(self, question: Any) -> Any:
        kind, number, *given = question
        value = self._given[number]
        if kind == "next":
            return next(value)
        return value(*given[0], **dict(given[1]))

    # ---- things of its own

    def class_named(self, name: str) -> type:
        return self._known[name]

    def name_of(self, kind: type) -> str:
        name = kind.__name__
        if self._known.get(name) is kind:
            return name
        if kind.__module__ != "case" or name not in self.sources:
            return ""
        self._known[name] = kind
        for base in kind.__mro__[1:]:
            self.name_of(base)
        self._tell(self.sources[name], name)
        return name

    def _tell(self, source: str, name: str) -> None:
        """Define a class of the case in the program's process, before the class or an instance of
        it is sent there."""
        heap = self._heap
        if not self._reported:
            self._reported = True
            self.ask("imports", self.imports)
        self.ask("class", name, source)
        self._heap = heap

    def tag(self, value: Any) -> str:
        if type(value) is Remote:
            return f'{{"o":{value._number}}}'
        if isinstance(value, type) and self.name_of(value):
            return f'{{"C":{quoted(value.__name__)}}}'
        if isinstance(value, type) and value in self._errors.values():
            number = next(n for n, kind in self._errors.items() if kind is value)
            return f'{{"o":{number}}}'
        kind = type(value)
        iterates = hasattr(kind, "__next__") and kind.__module__ in ITERATORS
        if not callable(value) and not iterates:
            where = f"{kind.__module__}.{kind.__qualname__}"
            raise RefusedError(f"a {where.removeprefix('case.')} cannot be passed to the program")
        self._given.append(value)
        return f'{{"c":{len(self._given) - 1}}}'

    def untag(self, tag: str, inner: Any) -> Any:
        match tag:
            case "o":
                return Remote(self, inner[0], BASES_BY_NAME.get(inner[1]))
            case "c":
                return self._given[inner]
            case "C":
                return self._known[inner]
            case "w":
                return self._awaited(Remote(self, inner, None))
            case "E":
                return self._class_of_errors(*inner)
            case "e":
                kind = self._class_of_errors(*inner[0])
                return kind.__new__(kind, *self.decoded(inner[1]))
        raise ValueError(tag)

    async def _awaited(self, coroutine: Remote) -> Any:
        return self.ask("await", coroutine)

    def _class_of_errors(self, number: int, module: str, name: str, base: str) -> Any:
        import sys

        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(found, Exception) and module != "case":
            return found
        if number not in self._errors:
            parent = getattr(builtins, base)
            if not issubclass(parent, BaseException):
                raise ValueError(base)
            self._errors[number] = type(name, (parent,), {})
        return self._errors[number]

    def error(self, error: BaseException) -> str:
        if isinstance(error, RefusedError):
            raise error
        return f'"{type(error).__name__}"'


def _same(one: Any, other: Any) -> bool:
    """The operator `is`, also for objects in the program's process."""
    if type(one) is Remote and type(other) is Remote:
        return one._number == other._number
    return one is other


def run(spec: dict[str, Any], result: int) -> None:
    """Execute the cases in order; a failure ends only its case."""
    reading, writing = spec["link"]
    judge = Judge(reading, writing, spec)
    for i, case in enumerate(spec["cases"]):
        try:
            exec(compile(case, "<case>", "exec", dont_inherit=True), judge.names)
            line = f"[{i},true]"
        except BrokenError:
            return
        except RefusedError as error:
            line = f"[{i},{quoted(str(error))}]"
        except BaseException:
            line = f"[{i},false]"
        os.write(result, f"{line}\n".encode())
