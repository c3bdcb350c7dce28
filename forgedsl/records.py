"""A faster `dataclass`, `field`, `fields` and `replace`. The compiler defines some 150 records each
time `forgec lint` starts. With the standard library each takes 0.5 ms, and importing `dataclasses`
takes 10 ms.

The interface is that of `dataclasses`, as far as it is used here: `frozen`, `slots`, `kw_only`,
`eq`, `weakref_slot`, defaults and default factories, `__post_init__`, `match`, pickle. `replace`
and `fields` of `dataclasses` work too. Work is done later or not at all: equality, hash and repr
are shared functions, `__init__` is made for the first instance from a body that classes share, and
field objects are made on request. A class that needs anything else is handed to the standard
library.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter, methodcaller
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from forgedsl.record_bodies import BODIES

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
else:

    def dataclass(cls=None, /, **options):
        """Like `dataclasses.dataclass`."""

        def define(cls):
            return _define(cls, **options)

        return define if cls is None else define(cls)

    def field(**options):
        """Like `dataclasses.field`."""
        return _Options(options)

    def fields(record):
        """Like `dataclasses.fields`: objects with a `name`, in order."""
        own = getattr(record, "_record", None)
        if own is None:
            import dataclasses

            return dataclasses.fields(record)
        return tuple(own.values())

    def replace(record, /, **changes):
        """Like `dataclasses.replace`."""
        cls = type(record)
        own = getattr(cls, "_record", None)
        if own is None:
            import dataclasses

            return dataclasses.replace(record, **changes)
        return cls(**dict(zip(own, cls._values(record), strict=True)) | changes)


_MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()
_MAKE: Any = type("MAKE", (), {"__repr__": lambda self: "<factory>"})()
"""default of a parameter whose value is made by a factory"""
_KNOWN = {"frozen", "slots", "kw_only", "eq", "weakref_slot"}
_OPTIONS = {"default", "default_factory"}


class _Options:
    """Arguments of `field(...)`."""

    __slots__ = ("options",)

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


class _Field:
    """One field of a record."""

    __slots__ = ("default", "default_factory", "kw_only", "name", "type")

    def __init__(self, name: str, type_: str, default: Any, factory: Any, kw_only: bool) -> None:
        self.name = name
        self.type = type_
        self.default = default
        self.default_factory = factory
        self.kw_only = kw_only

    @property
    def start(self) -> Any:
        """Default of the parameter."""
        return self.default if self.default_factory is _MISSING else _MAKE


def _define(cls: type, **options: bool) -> type:
    """Return the class with the methods of a dataclass."""
    own = _own_fields(cls, kw_only=options.get("kw_only", False))
    bases = [base for base in cls.__mro__[-2:0:-1] if "__dataclass_fields__" in base.__dict__]
    foreign = any("_record" not in base.__dict__ for base in bases)
    if own is None or foreign or set(options) - _KNOWN or not options.get("slots"):
        return _standard(cls, options)
    specs: dict[str, _Field] = {}
    for base in bases:
        specs |= base.__dict__["_record"]
    inherited = set(specs)
    specs |= own
    members = {k: v for k, v in cls.__dict__.items() if k not in own}
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    frozen = options.get("frozen", False)
    members |= _members(specs, frozen=frozen, eq=options.get("eq", True), written=members)
    slots = tuple(name for name in own if name not in inherited)
    members["__slots__"] = (*slots, "__weakref__") if options.get("weakref_slot") else slots
    members["__qualname__"] = cls.__qualname__
    return type(cls)(cls.__name__, cls.__bases__, members)


def _standard(cls: Any, options: dict[str, bool]) -> type:
    """Return the class as the standard library makes it."""
    import dataclasses

    for name, value in list(vars(cls).items()):
        if isinstance(value, _Options):
            setattr(cls, name, dataclasses.field(**value.options))
    made: type = dataclasses.dataclass(cls, **options)
    return made


def _own_fields(cls: type, *, kw_only: bool) -> dict[str, _Field] | None:
    """Fields of the class body, or None if one needs the standard library."""
    found: dict[str, _Field] = {}
    for name, type_ in vars(cls).get("__annotations__", {}).items():
        if not isinstance(type_, str) or "InitVar" in type_:
            return None
        if "ClassVar" in type_:
            continue
        default = cls.__dict__.get(name, _MISSING)
        factory = _MISSING
        if isinstance(default, _Options):
            if set(default.options) - _OPTIONS:
                return None
            factory = default.options.get("default_factory", _MISSING)
            default = default.options.get("default", _MISSING)
        elif type(default).__hash__ is None:
            return None  # a mutable default: the standard library raises the error
        found[name] = _Field(name, type_, default, factory, kw_only)
    return found


def _members(
    specs: dict[str, _Field], *, frozen: bool, eq: bool, written: dict[str, Any]
) -> dict[str, Any]:
    """Return the methods to add: those that the class body does not define."""
    given: dict[str, Any] = {
        "_record": specs,
        "_values": attrgetter(*specs) if len(specs) > 1 else _few(tuple(specs)),
        "__dataclass_fields__": _StandardFields(),
        "__match_args__": tuple(n for n, spec in specs.items() if not spec.kw_only),
    }
    methods: dict[str, Any] = {"__init__": _first_init, "__repr__": _repr, "__reduce__": _reduce}
    if eq:
        methods["__eq__"] = _eq
        methods["__hash__"] = _hash if frozen else None
    if frozen:
        methods |= {"__setattr__": _frozen, "__delattr__": _frozen}
    # Python sets it to None in a class that defines `__eq__`
    implied = {"__hash__"} if written.get("__hash__", "") is None else set()
    return given | {n: m for n, m in methods.items() if n in implied or n not in written}


class _StandardFields:
    """`__dataclass_fields__`, made when the standard library asks for it."""

    def __get__(self, instance: object, owner: Any) -> dict[str, Any]:
        import dataclasses

        home = next(c for c in owner.__mro__ if c.__dict__.get("__dataclass_fields__") is self)
        found: dict[str, Any] = {}
        for name, spec in home._record.items():
            options: dict[str, Any] = {"kw_only": spec.kw_only}
            if spec.default_factory is not _MISSING:
                options["default_factory"] = spec.default_factory
            elif spec.default is not _MISSING:
                options["default"] = spec.default
            made: Any = dataclasses.field(**options)
            made.name, made.type = name, spec.type
            made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            found[name] = made
        type.__setattr__(home, "__dataclass_fields__", found)
        return found


def _few(names: tuple[str, ...]) -> Any:
    """Like `attrgetter`, but accepts an empty list of names, and always returns a tuple."""
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
    import dataclasses

    raise dataclasses.FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _reduce(self: Any) -> tuple[Any, ...]:
    return rebuild, (type(self), _values(self))


def rebuild(cls: Any, values: tuple[Any, ...]) -> Any:
    """Make an instance from the values of its fields, without calling `__init__`."""
    record = object.__new__(cls)
    for setter, value in zip(_setters(cls), values, strict=True):
        setter(record, value)
    return record


def _setters(cls: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = cls.__dict__.get("_setters")
    if found is None:
        found = tuple(getattr(cls, name).__set__ for name in cls._record)
        type.__setattr__(cls, "_setters", found)
    return found


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """`__init__` of a class until its first instance: it makes the real one and takes its place."""
    home: Any = next(c for c in type(self).__mro__ if c.__dict__.get("__init__") is _first_init)
    init = _made_init(home)
    type.__setattr__(home, "__init__", init)
    init(self, *args, **kwargs)


def _made_init(cls: Any) -> Any:
    """Make `def __init__(self, *, a, b=1): ...`, which writes into the slots. Classes with equally
    many fields share the compiled body; the names of the parameters and what writes the fields are
    their own."""
    specs: dict[str, _Field] = cls._record
    positional: tuple[str, ...] = cls.__match_args__
    keyword = tuple(name for name, spec in specs.items() if spec.kw_only)
    code = _body(len(specs)).replace(
        co_varnames=("self", *positional, *keyword),
        co_argcount=1 + len(positional),
        co_kwonlyargcount=len(keyword),
    )
    names = {f"_set_{i}": _setter(cls, specs[n]) for i, n in enumerate((*positional, *keyword))}
    names["_end"] = methodcaller("__post_init__") if hasattr(cls, "__post_init__") else None
    defaults = {name: spec.start for name, spec in specs.items() if spec.start is not _MISSING}
    given = tuple(defaults[name] for name in positional if name in defaults)
    assert all(name in defaults for name in positional[len(positional) - len(given) :]), cls
    made = FunctionType(code, names, "__init__", given)
    made.__kwdefaults__ = {name: defaults[name] for name in keyword if name in defaults}
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


@cache
def _body(size: int) -> CodeType:
    """Return the body of an `__init__` with `size` parameters."""
    if size < len(BODIES):
        return BODIES[size]
    names: dict[str, Any] = {}
    exec(body_text(size), names)
    code: CodeType = names[f"_{size}"].__code__
    return code


def body_text(size: int) -> str:
    """Return the text of an `__init__` with `size` parameters."""
    parameters = ", ".join(["self", *(f"_{i}" for i in range(size))])
    lines = [f"    _set_{i}(self, _{i})" for i in range(size)]
    end = ["    if _end:", "        _end(self)", ""]
    return "\n".join([f"def _{size}({parameters}):", *lines, *end])


def _setter(cls: Any, spec: _Field) -> Any:
    """Return the function that writes a field of a record."""
    write = getattr(cls, spec.name).__set__
    if spec.default_factory is _MISSING:
        return write

    def write_or_make(record: Any, value: Any) -> None:
        write(record, spec.default_factory() if value is _MAKE else value)

    return write_or_make
