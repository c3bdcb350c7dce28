"""What is known of the values of a Python program: labels, constants, fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from forgedsl.records import dataclass, field, replace

if TYPE_CHECKING:
    from forgedsl.lint.follow.files import File, Function

Env = dict[str, "Value"]
Labels = frozenset[str]


IS_RESPONSE, RESPONSE, READS_RESPONSE = "is response", "response", "reads response"
"""all that the policy wrote; text that contains some of it; whatever depends on it"""
IS_TARGET, TARGET, READS_TARGET = "is target", "target", "reads target"
VERDICT = "verdict"
"""says whether a text of the policy equals the target"""
DEFAULT = "default"
"""may be a default, a constant for an answer that could not be read"""
PAID = "default above 0"
"""a default that is above 0 as a score"""
FOUND = "found"
"""a match of a pattern, or none"""
LISTED = "listed"
"""never None, though perhaps empty"""
DISTANCE, CLOSE = "distance", "close"
"""the difference of a number of the policy and the target; a comparison of it"""
KEPT = "kept"
"""an attribute that `reset` of an environment assigns"""
NET, FILE = "net", "file"
"""a reply of another machine; the content of a file"""
TASK, TURN, ROLLOUT = "task", "turn", "rollout"
"""objects of forgedsl, whose attributes are known"""
UNORDERED = "unordered"
"""a set, or a list of its members as they come"""
CLOCK, EXIT, OUTPUT = "clock", "exit code", "output"
"""a time of day, or since a moment; how another program ended; whatever depends on what it wrote"""
ESCAPED = "escaped"
"""`re.escape` was called on it"""
LOWERED, RAISED, STRIPPED = "lowered", "raised", "stripped"
"""a text in small letters; in capitals; without spaces around it"""
FIXED = "fixed path"
"""a path that is the same for all calls"""
PROMPT = "prompt"
"""text of the prompt"""
SECRET = "secret"
"""has the value of a key or a password in it"""
SHARED, CACHED = "shared object", "cached object"
"""an object that a file makes once, at its import; one that a cached function returns again"""
OF_DEFAULT = "object of a default"
"""an object that is the default of a parameter, which all calls share"""
ONE_OBJECT = frozenset({SHARED, CACHED, OF_DEFAULT})
DRAWN = "drawn"
"""a part of what the target says, chosen by chance"""
FLOAT, WHOLE_NUMBER, DIGITS = "float", "whole number", "digits"
"""what `float` gave; a number without its decimals; a text of which all but digits was deleted"""
NUMBER, TEXT = "number", "text"
"""certainly a number; certainly no number"""
NUMBERS, TEXTS = "list of numbers", "list of texts"
"""a list whose members are certainly numbers; certainly no numbers"""
ANSWER = "text of the answer"
"""a target that is a text, and what is taken out of it: a part of it is the target, too"""
HEAD = "head"
"""the first characters of the response, or what is found in them"""
LETTER = "letter"
"""one character of a text"""
CHARACTERS, CALLS, FLOORED = "characters", "calls of tools", "floored"
"""a number of characters; a number of calls in a turn; a quotient without its decimals"""
RELATIVE = "relative distance"
"""the difference of a number of the policy and the target, divided by the target"""
ARGUMENTS = tuple(f"argument {index}" for index in range(8))
"""a number that the policy passes to a tool; one label for each such parameter of a class"""
NUMERIC = frozenset({CLOCK, EXIT, WHOLE_NUMBER, CHARACTERS, CALLS, *ARGUMENTS})
"""labels that a result of arithmetic has if an operand has them"""
OTHER, POLICY = "another model", "policy endpoint"
"""depends on a reply of a model that is not trained; a client of the endpoint of the policy"""
READS = frozenset({READS_RESPONSE, READS_TARGET, NET, DRAWN, OUTPUT, OTHER, POLICY})
"""labels that the result of every operation has if an operand has them"""
TESTS = READS | {VERDICT, EXIT}
"""labels that a test gives to everything inside its branches"""
CONTENT = NUMERIC | {
    KEPT, RESPONSE, TARGET, DEFAULT, PAID, FILE, VERDICT, DISTANCE, SECRET, DIGITS,
    ESCAPED, PROMPT, LOWERED, RAISED, STRIPPED, FLOORED, RELATIVE,
    ANSWER, HEAD,
}  # fmt: skip
"""labels that conversions and texts pass on"""
KINDS = frozenset({NUMBER, TEXT})
LIST_OF = {NUMBER: NUMBERS, TEXT: TEXTS}
MEMBER_OF = {NUMBERS: NUMBER, TEXTS: TEXT}
PAIRS, PAIR, VALUES = "pairs()", "pair()", "values()"
"""names of what `items` and `values` of a dict give, and of a pair of a key and a value"""
WHOLE = frozenset({IS_RESPONSE, IS_TARGET})
WORDS_OF = {label: f"words of {label}" for label in WHOLE}
"""the list of all words of a text, which may be joined again"""

ROUNDS = 8
"""rounds of a loop that are followed one by one"""
FEW = 6
"""numbers that are kept of a value that is one of several"""
UNKNOWN = object()
"""stands for a constant that is not known"""
TAKEN = "\0taken"
"""key of a function's variables that is true after the `except` clause `failing` was entered; see
`lint.follow.run`"""


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value. `name`: its dotted name, of a module or a function; `key`: the
    expression it was read from; `fields`: those of a dict or an object of the file."""

    labels: Labels = frozenset()
    const: Any = UNKNOWN
    name: str = ""
    fields: Mapping[str, Value] | None = None
    function: Called | None = None
    preset: tuple[tuple[Value, ...], Mapping[str, Value]] | None = None
    """arguments that `functools.partial` has given it"""
    made_of: Class | None = None
    """class of the files of which it is an object; its fields are its attributes"""
    choices: frozenset[float] = frozenset()
    """the numbers it can be, if it is one of a few; empty if they are unknown"""
    share: float = 0.0
    """it is this number times a number of the target; 0.0 if that is not known"""

    @property
    def numbers(self) -> frozenset[float]:
        """The numbers it can be, also of a constant; empty if they are unknown."""
        const = self.const
        is_number = isinstance(const, int | float) and const == const
        return frozenset({float(const)}) if is_number else self.choices

    @property
    def all(self) -> Labels:
        """Labels of the value and of its fields."""
        inner = (value.all for value in (self.fields or {}).values())
        return self.labels.union(*inner) if self.fields else self.labels


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the files that are read."""

    node: ast.ClassDef
    file: File


@dataclass(frozen=True, slots=True)
class Called:
    """A function of the files that are read. `bound`: it is a method, and gets the object `owner`,
    or else `self`."""

    node: Function | ast.Lambda
    file: File
    bound: bool = False
    closure: Mapping[str, Value] | None = None
    owner: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A call or a comparison. `blocking`: it runs in the event loop: in a coroutine, and not in a
    thread. `taken`: it comes after the `except` clause `failing` was entered. `control`: labels of
    the tests that decide if it is reached."""

    kind: str
    node: ast.AST
    file: File
    name: str = ""
    values: tuple[Value, ...] = ()
    keywords: Mapping[str | None, Value] = field(default_factory=dict)
    receiver: Value = field(default_factory=Value)
    blocking: bool = False
    taken: bool = False
    control: Labels = frozenset()

    @property
    def is_equality(self) -> bool:
        """True for `==` and `!=`."""
        ops = getattr(self.node, "ops", ())
        return bool(ops) and all(isinstance(op, ast.Eq | ast.NotEq) for op in ops)

    def argument(self, name: str, place: int) -> Value | None:
        """Return an argument of a call, given by name or by position."""
        positional = self.values[place] if len(self.values) > place else None
        return self.keywords.get(name, positional)


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A value that the program returns."""

    value: Value
    node: ast.AST
    taken: bool
    control: Labels


@dataclass(slots=True)
class Frame:
    """A function that is being run."""

    node: ast.AST
    file: File
    env: Env
    blocking: bool
    control: Labels = frozenset()
    absent: int = 0
    """number of enclosing branches that run only if nothing was found, or on an exception"""
    returned: list[tuple[Value, ast.AST, Value, Labels]] = field(default_factory=list)
    left: list[Env] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)
    imports: dict[str, str] = field(default_factory=dict)


READ_TEXT = frozenset({RESPONSE, READS_RESPONSE})


def response() -> Value:
    return Value(frozenset({IS_RESPONSE, RESPONSE, READS_RESPONSE, TEXT}))


def target() -> Value:
    return Value(frozenset({IS_TARGET, TARGET, READS_TARGET}))


SOURCES: dict[str, Callable[[], Value]] = {
    "prompt": lambda: Value(frozenset({PROMPT})),
    "response": response,
    "target": target,
    "rollout": lambda: Value(frozenset({ROLLOUT, READS_RESPONSE})),
    "messages": Value,
    "model": lambda: Value(name="model"),
    "task": lambda: Value(frozenset({TASK})),
    "turn": lambda: Value(frozenset({TURN, READS_RESPONSE})),
    "written": lambda: Value(READ_TEXT),
}
"""what an argument is, by where it comes from; `written`: an argument of a tool"""


def source(name: str) -> Value:
    """Return the value of an argument by its source. A column may hold the right answer, too."""
    if name in SOURCES:
        return SOURCES[name]()
    return Value(frozenset({READS_TARGET})) if name.startswith(("column", "row")) else Value()


def positional(node: Function | ast.Lambda) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args]


def defaults(node: Function) -> list[tuple[str, ast.expr]]:
    """Return the parameters of a function that have a default, with it."""
    names = [each.arg for each in positional(node)]
    by_place = zip(names[len(names) - len(node.args.defaults) :], node.args.defaults, strict=True)
    words = zip((a.arg for a in node.args.kwonlyargs), node.args.kw_defaults, strict=True)
    return [*by_place, *((name, value) for name, value in words if value is not None)]


def all_of(values: Iterable[Value]) -> Labels:
    return frozenset[str]().union(*(value.all for value in values))


def reads(values: Iterable[Value]) -> Labels:
    return all_of(values) & READS


def content(values: Iterable[Value]) -> Labels:
    return all_of(values) & (READS | CONTENT)


NAMES_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


def is_secret(name: object) -> bool:
    """True if a variable of this name holds a key or a password."""
    return isinstance(name, str) and NAMES_SECRET.search(name) is not None


def numbers(values: Iterable[Value]) -> Labels:
    """Return the labels that arithmetic passes on."""
    return frozenset[str]().union(*(value.labels for value in values)) & NUMERIC


def element(value: Value) -> Value:
    """Return a part of a value. A part of the target is not labelled as the target, since it may
    belong to the task."""
    if value.name == PAIRS:
        return pair(Value(), join([Value(value.labels), *(value.fields or {}).values()]))
    if value.name in (PAIR, VALUES):
        return Value(content([value]))
    kinds = frozenset(MEMBER_OF[label] for label in value.labels & MEMBER_OF.keys())
    kept = (READS | CONTENT) - (frozenset() if ANSWER in value.labels else {TARGET})
    return Value((value.all & kept) | (value.labels & ONE_OBJECT) | kinds)


def pair(key: Value, value: Value) -> Value:
    """Return a pair of a key of a dict and its value."""
    return Value(name=PAIR, fields={"key": key, "value": value})


def elements(node: ast.expr, over: Value) -> list[Value]:
    """Return what a loop gives its name in each round, as far as this is known: the pairs of a
    dict, constants that are listed; else one value for all rounds."""
    if over.name == PAIRS and 1 < len(over.fields or ()) <= ROUNDS:
        fields = (over.fields or {}).items()
        return [
            pair(Value(const=key), replace(held, labels=held.labels | over.labels))
            for key, held in fields
        ]
    listed = node.elts if isinstance(node, ast.List | ast.Tuple) else ()
    constants = [each.value for each in listed if isinstance(each, ast.Constant)]
    if 1 < len(constants) == len(listed) <= ROUNDS:
        return [Value(const=each) for each in constants]
    return [element(over)]


def members(values: Iterable[Value]) -> Labels:
    """Return NUMBERS or TEXTS for the members of a list, if all of them are of that kind."""
    kinds = {kind(value) for value in values}
    found = kinds.pop() if len(kinds) == 1 else frozenset[str]()
    return frozenset(LIST_OF[label] for label in found)


def meet(left: Value, right: Value) -> bool:
    """True if one side comes from the target, and the other from the response of the policy."""
    one, other = left.all, right.all
    return (TARGET in one and RESPONSE in other) or (TARGET in other and RESPONSE in one)


def kind(value: Value) -> Labels:
    """Return NUMBER or TEXT if a value is certainly of this kind."""
    if isinstance(value.const, bool) or value.const is UNKNOWN or value.const is None:
        return value.labels & KINDS
    if isinstance(value.const, int | float):
        return frozenset({NUMBER})
    return frozenset({TEXT}) if isinstance(value.const, str) else frozenset()


def join(values: list[Value]) -> Value:
    if not values:
        return Value()
    first = values[0]
    if all(value == first for value in values[1:]):
        return first
    labels = frozenset[str]().union(*(value.labels for value in values))
    for label in labels & WHOLE:
        known = [value for value in values if value.const is not None and value.const != ""]
        labels -= set() if all(label in value.labels for value in known) else {label}
    letters = (v for v in values if v.const is not None and v.const != "")
    labels -= set() if all(LETTER in value.labels for value in letters) else {LETTER}
    for label in labels & MEMBER_OF.keys():
        labels -= set() if all(label in value.labels for value in values) else {label}
    for label in labels & KINDS:
        given = [value for value in values if value.const is not None]
        labels -= set() if all(kind(value) == {label} for value in given) else {label}
    if not all(LISTED in value.labels for value in values):
        labels -= {LISTED}
    is_same = all(_same(v.const, first.const) for v in values)
    fields: dict[str, Value] = {}
    for value in values:
        for key, inner in (value.fields or {}).items():
            fields[key] = join([fields[key], inner]) if key in fields else inner
    has_fields = any(value.fields is not None for value in values)
    names = {value.name for value in values}
    functions = [value.function for value in values if value.function is not None]
    classes = [value.made_of for value in values if value.made_of is not None]
    each_number = [value.numbers for value in values]
    choices = frozenset[float]().union(*each_number) if all(each_number) else frozenset[float]()
    return Value(
        labels,
        choices=choices if len(choices) <= FEW else frozenset(),
        const=first.const if is_same else UNKNOWN,
        name=first.name if len(names) == 1 else "",
        fields=fields if has_fields else None,
        function=functions[0] if len(functions) == len(values) else None,
        made_of=classes[0] if len(classes) == len(values) else None,
    )


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and one == other)


def join_envs(envs: list[Env]) -> Env:
    if len(envs) == 1:
        return envs[0]
    taken = [env for env in envs if env[TAKEN].const]
    envs = taken or envs  # keep only the paths through the clause, if there are some
    found: Env = {}
    for name in dict.fromkeys(name for env in envs for name in env):
        found[name] = join([env[name] for env in envs if name in env])
    return found
