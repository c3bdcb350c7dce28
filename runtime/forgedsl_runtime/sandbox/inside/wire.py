"""Protocol between the judge's process and the program's: one line of JSON per message.

    {"q": value, "h": heap}  a question    {"a": value, "h": heap}  its answer
    {"e": [class, args], "h": heap}  the exception that the question raised

Plain data is sent by value. Mutable containers have numbers known to both ends. Every message holds
the contents of the containers that it needs or that have changed (`heap`), so a list that a call
sorts is sorted for its caller too. Other objects stay in their process; each end writes and reads
references to them with its own tags.
"""

from __future__ import annotations

import builtins
import os
import sys
from _collections import (  # type: ignore[import-not-found]
    OrderedDict,
    defaultdict,
    deque,
)
from _json import encode_basestring_ascii, make_scanner  # the json package costs 6 ms

TYPE_CHECKING = False  # `typing` at run time costs more than all the other imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

quoted = encode_basestring_ascii
LONGEST = 10**15
"""larger integers are written in hexadecimal, which is parsed in linear time and has no digit
limit"""
LINE = 16 << 20
"""longest message, in bytes"""
KEPT = 512
"""number of containers whose identity is kept; older ones are sent by value from then on"""
MAPPINGS = {"dict": dict, "OrderedDict": OrderedDict, "defaultdict": defaultdict}
KINDS = {list: "list", set: "set", bytearray: "bytearray", deque: "deque"} | {
    made: name for name, made in MAPPINGS.items()
}
PLAIN = (int, float, complex, str, bytes)
BASES = (*PLAIN, *KINDS, tuple, frozenset)
BASES_BY_NAME = {kind.__name__: kind for kind in BASES}
STATES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "builtins.complex": lambda v: (v.real, v.imag),
    "builtins.range": lambda v: (v.start, v.stop, v.step),
    "builtins.slice": lambda v: (v.start, v.stop, v.step),
    "decimal.Decimal": lambda v: (str(v),),
    "fractions.Fraction": lambda v: (v.numerator, v.denominator),
    "datetime.date": lambda v: (v.year, v.month, v.day),
    "datetime.time": lambda v: (v.hour, v.minute, v.second, v.microsecond, _zone(v)),
    "datetime.datetime": lambda v: (
        v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, _zone(v),
    ),
    "datetime.timedelta": lambda v: (v.days, v.seconds, v.microseconds),
    "datetime.timezone": lambda v: (v.utcoffset(None),),
}  # fmt: skip
"""immutable types of the standard library -> arguments that make the value again"""


class BrokenError(BaseException):
    """The other end is gone or sent an invalid message; the connection is unusable."""


class _Format:
    strict = False
    object_hook = object_pairs_hook = parse_constant = None
    parse_float, parse_int = float, int


class Link:
    """One end of the connection. Subclasses define tags for their own objects, and `answer`."""

    def __init__(self, reading: int, writing: int, step: int) -> None:
        self._reading, self._writing, self._step = reading, writing, step
        self._buffer = bytearray()
        form: Any = _Format
        self._scan: Any = make_scanner(form)
        self._next = step
        self._containers: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._seen: dict[int, str] = {}
        self._heap: dict[int, str] = {}

    def tag(self, value: Any) -> str:
        raise NotImplementedError

    def untag(self, tag: str, inner: Any) -> Any:
        raise NotImplementedError

    def class_named(self, name: str) -> type:
        raise NotImplementedError

    def name_of(self, kind: type) -> str:
        """Return the name of a class that both ends have, whose instances are sent by value; else
        ""."""
        raise NotImplementedError

    def answer(self, question: Any) -> Any:
        raise NotImplementedError

    def error(self, error: BaseException) -> str:
        raise NotImplementedError

    # ---- messages

    def ask(self, *question: Any) -> Any:
        """Ask the other end and return its answer; meanwhile answer its questions."""
        self._send("q", self._written(lambda: self.encoded(question)))
        while True:
            kind, value = self.receive()
            if kind == "a":
                return value
            if kind == "e":
                raise value
            self.reply(value)

    def reply(self, question: Any) -> None:
        """Answer one question."""
        try:
            answer = self.answer(question)
            line = self._written(lambda: self.encoded(answer))
        except BrokenError:
            raise
        except BaseException as error:
            said = error  # `error` is unbound at the end of this block
            self._send("e", self._written(lambda: self.error(said)))
        else:
            self._send("a", line)

    def receive(self) -> tuple[str, Any]:
        """Return the next message; the value of an "e" is an exception."""
        while (end := self._buffer.find(b"\n")) < 0:
            part = os.read(self._reading, 1 << 16)
            if not part or len(self._buffer) > LINE:
                raise BrokenError
            self._buffer += part
        line = self._buffer[:end].decode("ascii", "replace")
        del self._buffer[: end + 1]
        try:
            message, _ = self._scan(line, 0)
            [kind, inner], [_, heap] = message.items()
            self._fill(heap)
            return kind, self.decoded(inner) if kind != "e" else self.untag("e", inner)
        except (Exception, RecursionError) as error:
            raise BrokenError from error

    def _written(self, write: Callable[[], str]) -> tuple[str, str]:
        """Return the text of a value, and of the containers that it needs or that have changed."""
        heap: dict[int, str] = {}
        self._heap = heap
        text = write()
        for number, container in list(self._containers.items()):
            if number not in heap and number in self._seen:
                old, before = self._seen[number], dict(heap)
                if self._contents(container) == old:
                    self._heap = heap = before
                else:
                    heap.pop(number, None)
                    self._refer(container)
        self._seen.update(heap)
        said = ",".join(f"[{number},{contents}]" for number, contents in heap.items())
        for number in [n for n in list(self._containers)[:-KEPT] if n not in heap]:
            del self._numbers[id(self._containers.pop(number))]
            self._seen.pop(number, None)
        return text, f"[{said}]"

    def _send(self, kind: str, written: tuple[str, str]) -> None:
        text, heap = written
        data = memoryview(f'{{"{kind}":{text},"h":{heap}}}\n'.encode("ascii"))
        try:
            while data:
                data = data[os.write(self._writing, data) :]
        except OSError as error:
            raise BrokenError from error

    # ---- out

    def encoded(self, value: Any) -> str:
        """Return the JSON of a value."""
        kind = type(value)
        if value is None or value is True or value is False:
            return {None: "null", True: "true", False: "false"}[value]
        if kind is int:
            return f"{value}" if abs(value) < LONGEST else f'{{"i":"{value:x}"}}'
        if kind is float:
            text = float.__repr__(value)
            return f'{{"n":"{text}"}}' if text[-1] in "fn" else text  # inf and nan are no JSON
        if kind is str:
            return str(quoted(value))
        if kind is bytes:
            return f'{{"b":"{value.hex()}"}}'
        if kind is tuple or kind is frozenset:
            return f'{{"{kind.__name__[0]}":[{self._items(value)}]}}'
        if kind in KINDS or _is_counter(kind) or self.name_of(kind):
            return self._refer(value)
        if (name := _standard(kind)) in STATES:
            return f'{{"x":[{quoted(name)},{self._items(STATES[name](value))}]}}'
        if kind is type and (value in KINDS or _standard(value) in STATES or _is_built_in(value)):
            return f'{{"k":{quoted(f"{value.__module__}.{value.__name__}")}}}'
        return self.tag(value)

    def _items(self, values: Any) -> str:
        return ",".join([self.encoded(item) for item in values])

    def _refer(self, container: Any) -> str:
        number = self._numbers.get(id(container))
        if number is None:
            number, self._next = self._next, self._next + self._step
            self._remember(number, container)
        if number not in self._heap:
            self._heap[number] = ""  # a container may hold itself
            self._heap[number] = self._contents(container)
        return f'{{"r":{number}}}'

    def _remember(self, number: int, container: Any) -> None:
        self._containers[number] = container
        self._numbers[id(container)] = number

    def _contents(self, value: Any) -> str:
        kind = type(value)
        if kind is list or kind is set:
            return f'"{kind.__name__}",[{self._items(value)}]'
        if kind is bytearray:
            return f'"bytearray","{value.hex()}"'
        if kind is deque:
            return f'"deque",[{self._items([value.maxlen, *value])}]'
        own = self.name_of(kind)
        name = f"={own}" if own else KINDS.get(kind, "Counter")
        pairs = vars(value).items() if own else value.items()
        said = ",".join([f"[{self.encoded(key)},{self.encoded(item)}]" for key, item in pairs])
        return f"{quoted(name)},[{said}]"

    # ---- in

    def decoded(self, found: Any) -> Any:
        """Return the value of its JSON."""
        if not isinstance(found, dict):
            return found
        [(tag, inner)] = found.items()
        match tag:
            case "i":
                return int(inner, 16)
            case "n":
                return float(inner)
            case "b":
                return bytes.fromhex(inner)
            case "t":
                return tuple(map(self.decoded, inner))
            case "f":
                return frozenset(map(self.decoded, inner))
            case "r":
                return self._containers[inner]
            case "x":
                return _imported(inner[0])(*map(self.decoded, inner[1:]))
            case "k":
                return _imported(inner)
        return self.untag(tag, inner)

    def _fill(self, heap: list[Any]) -> None:
        for number, kind, inner in heap:
            if number not in self._containers:
                self._remember(number, self._empty(kind, inner))
        # Fill instances first: hashing one needs its attributes.
        for number, kind, inner in sorted(heap, key=lambda row: row[1][0] != "="):
            self._set(self._containers[number], kind, inner)
        for number, _, _ in heap:
            self._heap = {}
            self._seen[number] = self._contents(self._containers[number])

    def _empty(self, kind: str, inner: Any) -> Any:
        if kind == "deque":
            return deque(maxlen=inner[0])
        if kind[0] == "=":
            return object.__new__(self.class_named(kind[1:]))
        if kind == "Counter":
            return _imported("collections.Counter")()
        return next(made for made, name in KINDS.items() if name == kind)()

    def _set(self, value: Any, kind: str, inner: Any) -> None:
        if kind == "bytearray":
            value[:] = bytes.fromhex(inner)
        elif kind == "list":
            value[:] = map(self.decoded, inner)
        elif kind == "deque":
            items = [self.decoded(item) for item in inner[1:]]
            value.clear()
            value.extend(items)
        elif kind == "set":
            items = [self.decoded(item) for item in inner]
            value.clear()
            value.update(items)
        else:
            pairs = [(self.decoded(key), self.decoded(item)) for key, item in inner]
            held = vars(value) if kind[0] == "=" else value
            held.clear()
            for key, item in pairs:
                held[key] = item


def _is_built_in(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


def _is_counter(kind: type) -> bool:
    return kind is getattr(sys.modules.get("collections"), "Counter", None)


def _standard(kind: Any) -> str:
    """Return the name of a class in the standard library; "" for another class."""
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__name__", "")
    if module == "_decimal":
        module = "decimal"
    found = getattr(sys.modules.get(module), name, None) if isinstance(name, str) else None
    return f"{module}.{name}" if found is kind else ""


def _imported(name: str) -> Any:
    """Return a class by name, from an allowlist of modules.

    Raises:
        ValueError: the name is not allowed.
    """
    module, _, last = name.rpartition(".")
    module = {"_collections": "collections", "_decimal": "decimal"}.get(module, module)
    if module not in ("builtins", "collections", "datetime", "decimal", "fractions"):
        raise ValueError(name)
    found = getattr(__import__(module), last)
    if not isinstance(found, type):
        raise ValueError(name)
    return found


def _zone(value: Any) -> Any:
    offset = value.utcoffset()
    if offset is None:
        return None
    return _imported("datetime.timezone")(offset)
