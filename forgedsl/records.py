"""`dataclass`, made cheap to define: the compiler has some 150 of them, and `forgec lint` pays for
their definition each time it starts (0.5 ms each with the standard library's).

Same interface as `dataclasses.dataclass` for what is used here: `frozen`, `slots`, `kw_only`,
`eq`, defaults, `field(default_factory=...)`, `__post_init__`, `replace`, `fields`, `match`, pickle.
The difference is when the work is done: equality, hash and repr are shared functions, `__init__` is
compiled when the first instance is made, field objects when someone asks for them. A class that
uses anything else is handed to the standard library.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`."""

        def define(cls):
            return _define(cls, **options)

        return define if cls is None else define(cls)


_MISSING = dataclasses.MISSING
_KNOWN = {"frozen", "slots", "kw_only", "eq"}
_Spec = tuple[Any, Any, bool, str]  # default, default factory, keyword only, type


def _define(cls: type, **options: bool) -> type:
    """The class with the methods of a dataclass."""
    own = _own_fields(cls, kw_only=options.get("kw_only", False))
    bases = [base.__dict__.get("_record") for base in cls.__mro__[-2:0:-1]]
    foreign = any("__dataclass_fields__" in c.__dict__ and "_record" not in c.__dict__
                  for c in cls.__mro__[1:])  # fmt: skip
    if own is None or foreign or set(options) - _KNOWN or not options.get("slots"):
        made: type = dataclasses.dataclass(cls, **options)
        return made
    specs: dict[str, _Spec] = {}
    for base in bases:
        specs |= base or {}
    inherited = set(specs)
    specs |= own
    members = {k: v for k, v in cls.__dict__.items() if k not in own}
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    frozen = options.get("frozen", False)
    members |= _members(specs, frozen=frozen, eq=options.get("eq", True), written=members)
    members["__slots__"] = tuple(name for name in own if name not in inherited)
    members["__qualname__"] = cls.__qualname__
    return type(cls)(cls.__name__, cls.__bases__, members)


def _own_fields(cls: type, *, kw_only: bool) -> dict[str, _Spec] | None:
    """Fields of the class body, or None if one needs the standard library."""
    found: dict[str, _Spec] = {}
    for name, type_ in vars(cls).get("__annotations__", {}).items():
        if not isinstance(type_, str) or "InitVar" in type_:
            return None
        if "ClassVar" in type_:
            continue
        default: Any = cls.__dict__.get(name, _MISSING)
        factory: Any = _MISSING
        if isinstance(default, dataclasses.Field):
            plain = default.init and default.repr and default.compare and default.hash is None
            if not plain or default.kw_only is not _MISSING:
                return None
            default, factory = default.default, default.default_factory
        elif type(default).__hash__ is None:
            return None  # a mutable default: the standard library says why not
        found[name] = (default, factory, kw_only, type_)
    return found


def _members(
    specs: dict[str, _Spec], *, frozen: bool, eq: bool, written: dict[str, Any]
) -> dict[str, Any]:
    """The methods that a class body does not have itself."""
    given: dict[str, Any] = {
        "_record": specs,
        "_values": attrgetter(*specs) if len(specs) > 1 else _few(tuple(specs)),
        "__dataclass_fields__": _Fields(),
        "__dataclass_params__": _Params(frozen=frozen, eq=eq),
        "__match_args__": tuple(n for n, spec in specs.items() if not spec[2]),
    }
    methods: dict[str, Any] = {"__init__": _first_init, "__repr__": _repr, "__reduce__": _reduce}
    if eq:
        methods["__eq__"] = _eq
        methods["__hash__"] = _hash if frozen else None
    if frozen:
        methods |= {"__setattr__": _frozen, "__delattr__": _frozen}
    implied = {"__hash__"} if written.get("__hash__", "") is None else set()  # by an `__eq__`
    return given | {n: m for n, m in methods.items() if n in implied or n not in written}


class _Params:
    """What `dataclasses` keeps as `__dataclass_params__`."""

    init = repr = True
    order = unsafe_hash = False

    def __init__(self, *, frozen: bool, eq: bool) -> None:
        self.frozen = frozen
        self.eq = eq


class _Fields:
    """`__dataclass_fields__`, made when it is asked for."""

    def __get__(self, instance: object, owner: Any) -> dict[str, Any]:
        home = next(c for c in owner.__mro__ if c.__dict__.get("__dataclass_fields__") is self)
        found: dict[str, Any] = {}
        for name, (default, factory, kw_only, type_) in home._record.items():
            made: Any = (
                dataclasses.field(default_factory=factory, kw_only=kw_only)
                if factory is not _MISSING
                else dataclasses.field(default=default, kw_only=kw_only)
            )
            made.name, made.type = name, type_
            made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            found[name] = made
        home.__dataclass_fields__ = found
        return found


def _few(names: tuple[str, ...]) -> Any:
    """As `attrgetter`, which wants a name and gives no tuple for a single one."""
    return lambda record: tuple(getattr(record, name) for name in names)


def _values(record: Any) -> tuple[Any, ...]:
    values: tuple[Any, ...] = type(record)._values(record)
    return values


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    names = type(self)._record
    shown = (f"{name}={value!r}" for name, value in zip(names, _values(self), strict=True))
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _frozen(self: Any, name: str, value: Any = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _reduce(self: Any) -> tuple[Any, ...]:
    return rebuild, (type(self), _values(self))


def rebuild(cls: Any, values: tuple[Any, ...]) -> Any:
    """An instance from the values of its fields, without `__init__`."""
    record = object.__new__(cls)
    for setter, value in zip(_setters(cls), values, strict=True):
        setter(record, value)
    return record


def _setters(cls: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = cls.__dict__.get("_setters")
    if found is None:
        found = tuple(getattr(cls, name).__set__ for name in cls._record)
        cls._setters = found
    return found


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """`__init__` of a class that has no instance yet: compiles the real one."""
    home = next(c for c in type(self).__mro__ if c.__dict__.get("__init__") is _first_init)
    init = _compiled_init(home)
    type.__setattr__(home, "__init__", init)
    init(self, *args, **kwargs)


def _compiled_init(cls: Any) -> Any:
    """`def __init__(self, *, a, b=_default_b): ...`, which writes into the slots."""
    positional: list[str] = []
    keyword: list[str] = []
    body: list[str] = []
    names: dict[str, Any] = {"_make": _MISSING}
    for name, (default, factory, kw_only, _) in cls._record.items():
        names[f"_set_{name}"] = getattr(cls, name).__set__
        text = name
        value = name
        if factory is not _MISSING:
            names[f"_factory_{name}"] = factory
            text, value = f"{name}=_make", f"_factory_{name}() if {name} is _make else {name}"
        elif default is not _MISSING:
            names[f"_default_{name}"] = default
            text = f"{name}=_default_{name}"
        (keyword if kw_only else positional).append(text)
        body.append(f"  _set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    star = ["*", *keyword] if keyword else []
    parameters = ", ".join(["self", *positional, *star])
    exec("\n".join([f"def __init__({parameters}):", *(body or ["  pass"])]), names)
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
