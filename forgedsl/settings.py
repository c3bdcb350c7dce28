"""Classes that describe settings; the schemas are made of them.

A `Kind` (service, dataset, schedule, ...) has `Setting`s; a setting has a `Type`, a default and a
class that says what a change of it affects. Schemas are data: validation, completion, hover and
the reference manual read the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, TypeVar

from forgedsl.records import dataclass, field

Impact = Literal["numerics", "placement", "observability"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Required:
    """There is no default: the setting must be written."""


@dataclass(frozen=True, slots=True)
class Derived:
    """The default is computed from other settings; `text` says how, for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Auto:
    """The value `auto`: the plan chooses."""


REQUIRED = Required()
AUTO = Auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """Type of a setting: the values that it accepts.

    base       int float bool str duration interval bytes list ref ctor deferred loss word any
               (interval: a number of steps as an int, or a duration in seconds as a float;
               loss: its name, with or without values of its parameters)
    words      bare words accepted besides the base (for base "word", nothing else is)
    kinds      ref: kinds of declarations that it may name
    ctors      ctor: constructors by name
    item       list: type of the elements
    optional   `none` is accepted and means None
    auto       `auto` is accepted
    minimum    least number, or characters of a string; `maximum` is the largest number
    above      exclusive lower bound; so `below` is the upper one
    usual      the smallest and largest plausible value (N906 warns of others)
    size       list: how many elements
    """

    base: str
    words: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    ctors: Mapping[str, Signature] = field(default_factory=dict)
    item: Type | None = None
    optional: bool = False
    auto: bool = False
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    usual: tuple[float, float] | None = None
    size: int | None = None

    def refuses(self, value: Any) -> str:
        """Return the bound that a value violates, such as `at least 1`; "" if it is accepted."""
        if isinstance(value, list):
            if self.size is not None and len(value) != self.size:
                return f"a list of {self.size}"
            problems = (self.item.refuses(item) for item in value) if self.item else ()
            return next(filter(None, problems), "")
        if isinstance(value, str) and self.base == "str":
            short = self.minimum is not None and len(value.strip()) < self.minimum
            return f"a text of at least {self.minimum:g} characters" if short else ""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return ""
        if self.minimum is not None and value < self.minimum:
            return f"at least {self.minimum:g}"
        if self.maximum is not None and value > self.maximum:
            return f"at most {self.maximum:g}"
        if self.above is not None and value <= self.above:
            return f"more than {self.above:g}"
        if self.below is not None and value >= self.below:
            return f"less than {self.below:g}"
        return ""

    @property
    def text(self) -> str:
        """Return the type in words, for messages and the reference."""
        names = {
            "str": "a string",
            "int": "an integer",
            "float": "a number",
            "bool": "true or false",
        }
        names |= {"duration": "a duration (10min)", "bytes": "a size (16GiB)", "any": "a value"}
        names |= {"interval": "a number of steps, a duration (10min)"}
        names |= {"loss": "the name of a loss"}
        names |= {"deferred": "an expression", "word": "", "ctor": "", "ref": "", "list": "a list"}
        parts = [names[self.base]] if names[self.base] else []
        if self.base == "ref":
            article = "an" if self.kinds[0][0] in "aeiou" else "a"
            parts.append(f"the name of {article} " + " or ".join(self.kinds))
        parts += [f"`{name}({', '.join(sig.names)})`" for name, sig in self.ctors.items()]
        parts += [f"`{word}`" for word in self.words]
        if self.auto:
            parts.append("`auto`")
        if self.optional:
            parts.append("`none`")
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a constructor; positional unless `keyword`."""

    name: str
    type: Type
    default: Any = REQUIRED
    keyword: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A constructor: `hf(id, revision)`. `instead` is the help for an argument that it does not
    take."""

    name: str
    params: tuple[Parameter, ...]
    doc: str
    instead: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.params if not p.keyword)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, named by its full path in the declaration (`optimizer.lr`)."""

    name: str
    type: Type
    default: Any
    impact: Impact
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Values of a setting that this version does not support. `exceeded` decides.

    most     larger numbers are unsupported
    role     instead of `most`: the setting needs a flow with a node of this role
    head     the limit applies only to a service with a value head
    beside   the limit applies only if the setting of this name is above 1
    words    unsupported words
    device   the limit applies only on this device
    instead  what to use instead, for the message"""

    setting: str
    instead: str
    most: int = 1
    role: str = ""
    head: bool = False
    beside: str = ""
    words: tuple[str, ...] = ()
    device: str = ""

    def exceeded(
        self,
        value: object,
        roles: Collection[str],
        *,
        head: bool,
        beside: object = None,
        device: str = "",
    ) -> bool:
        """True if a value is not supported in a flow with nodes of these `roles`."""
        if self.device not in ("", device):
            return False
        if self.words:
            return value in self.words
        if not isinstance(value, int) or (self.head and not head):
            return False
        if self.beside and not (isinstance(beside, int) and beside > 1):
            return False
        return self.role not in roles if self.role else value > self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of declaration.

    singleton  addressed by its kind (`schedule.steps`), not by a name
    labels     modes that may follow its name (`schedule sync`)
    single     the one setting of a kind that is itself a value (`launcher = slurm(...)`)
    open       prefixes under which any name is accepted (`engine.extra`)
    taken      names under `open` that the runtime sets itself, each with what decides its value
    support    values that this version does not support; rule P216 and the runtime refuse them
    """

    name: str
    settings: tuple[Setting, ...]
    doc: str
    singleton: bool = False
    labels: tuple[str, ...] = ()
    single: bool = False
    open: tuple[str, ...] = ()
    taken: tuple[tuple[str, str], ...] = ()
    support: tuple[Limit, ...] = ()

    def setting(self, path: str) -> Setting | None:
        """The setting at `path`, or None."""
        found = _by_name(self.settings).get(path)
        if found is not None:
            return found
        for prefix in self.open:
            if path.startswith(prefix + "."):
                return Setting(
                    name=path, type=ANY, default=None, impact="numerics", doc="passed through"
                )
        return None

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the nested blocks (`parallel`, `optimizer`)."""
        names = {s.name.rpartition(".")[0]: None for s in self.settings if "." in s.name}
        return (*names, *self.open)


_indices: dict[int, tuple[tuple[Setting, ...], dict[str, Setting]]] = {}
"""settings by name, by id of the tuple of settings, which is kept so that its id stays in use"""


def _by_name(settings: tuple[Setting, ...]) -> dict[str, Setting]:
    found = _indices.get(id(settings))
    if found is None:
        by_name = {setting.name: setting for setting in reversed(settings)}
        found = _indices[id(settings)] = (settings, by_name)
    return found[1]


class Live(Mapping[str, T]):
    """Mapping that reads a registry at each access, so that units added later (extensions) are
    seen."""

    def __init__(self, read: Callable[[], Mapping[str, T]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> T:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


# ---- the common types

ANY = Type(base="any")
STR = Type(base="str")
BOOL = Type(base="bool")
INT = Type(base="int")
LARGEST = 1e12
"""upper bound of every count: anything larger is a typing error"""
COUNT = Type(base="int", minimum=1, maximum=LARGEST)
NATURAL = Type(base="int", minimum=0, maximum=2.0**63)
FLOAT = Type(base="float")
NON_NEGATIVE = Type(base="float", minimum=0.0)
POSITIVE = Type(base="float", above=0.0)
FRACTION = Type(base="float", minimum=0.0, maximum=1.0)
POSITIVE_FRACTION = Type(base="float", above=0.0, maximum=1.0)
DURATION = Type(base="duration", above=0.0)
INTERVAL = Type(base="interval", minimum=1)
BYTES = Type(base="bytes", minimum=0)
EXPRESSION = Type(base="deferred")


def word(*words: str) -> Type:
    """Type of a setting that is one of a few bare words."""
    return Type(base="word", words=words)
