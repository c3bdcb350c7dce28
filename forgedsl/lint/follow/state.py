"""The state of a symbolic run: names, attributes and items, and the events so far."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from forgedsl.lint.follow.files import File, Function
from forgedsl.lint.follow.values import (
    ANSWER,
    CALLS,
    DEFAULT,
    DIGITS,
    EXIT,
    FILE,
    FOUND,
    HEAD,
    IS_RESPONSE,
    IS_TARGET,
    KEPT,
    KINDS,
    LETTER,
    LISTED,
    MEMBER_OF,
    NUMERIC,
    ONE_OBJECT,
    OUTPUT,
    PAID,
    PAIR,
    PROMPT,
    READ_TEXT,
    READS,
    READS_RESPONSE,
    RESPONSE,
    ROLLOUT,
    SECRET,
    SHARED,
    TAKEN,
    TARGET,
    TASK,
    TESTS,
    TEXT,
    TEXTS,
    TURN,
    UNKNOWN,
    VERDICT,
    Called,
    Class,
    Event,
    Frame,
    Labels,
    Returned,
    Value,
    element,
    is_secret,
    join,
    response,
    target,
)
from forgedsl.records import replace

BUDGET = 20_000
"""expressions and statements of a run; after them nothing more is known"""
ANSWERS = ("answer", "target", "solution", "label", "gold", "expected", "truth", "ground_truth")
"""keys of a target that hold the answer; other keys may describe the task"""


class State:
    """The state of a symbolic run. Subclasses implement `value` and `block`."""

    def __init__(
        self,
        file: File,
        failing: ast.ExceptHandler | None = None,
        *,
        verdict: bool | None = None,
    ) -> None:
        self.file = file
        self.verdict = verdict
        """result of comparisons of an answer with the target; None: both results are followed"""
        self.compared: dict[int, tuple[Value, Value]] = {}
        """what a comprehension iterates over, and its element"""
        self.raised = False
        """True after a call of a function that always raises"""
        self.raising: Labels = frozenset()
        """labels of the tests under which an exception is raised"""
        self.thrown: Labels = frozenset()
        """labels of the messages of exceptions that were raised"""
        self.judged = 0
        """number of comparisons whose result `verdict` decided"""
        self.failing = failing
        self.events: list[Event] = []
        self.returned: list[Returned] = []
        self.handlers: list[tuple[ast.ExceptHandler, ast.Try, File]] = []
        self.attributes: dict[str, Value] = {}
        """what `self.NAME` is, for all methods"""
        self.methods: dict[str, Function] = {}
        self.globals: dict[tuple[int, str], Value] = {}
        self.frames: list[Frame] = []
        self.budget = BUDGET
        self.targets: Labels = frozenset()
        """what is known of the targets of the rows: ANSWER and TEXT, or nothing"""
        self.turn: int | None = None
        """`turn.number`; None: it is not known"""
        self.nested = 0
        """how many `if` are around the statement, also of callers"""

    def truth(self, value: Value) -> object:
        """Return the constant that a test sees. If `verdict` is given, a search in an answer counts
        as successful."""
        if self.verdict is not None and value.const is UNKNOWN and FOUND in value.labels:
            return True
        return value.const

    @property
    def is_cut(self) -> bool:
        """True if the program was too long to be run to its end."""
        return self.budget < 0

    def value(self, node: ast.expr) -> Value:
        """Return what is known of an expression."""
        raise NotImplementedError

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Run statements; False if control never comes to their end."""
        raise NotImplementedError

    def constant(self, node: ast.expr, file: File | None = None) -> Value:
        """Return what is known of an expression outside of functions."""
        file = file or self.file
        self.frames.append(Frame(file.module, file, {TAKEN: Value(const=False)}, False))
        value = self.value(node)
        self.frames.pop()
        return value

    def name(self, name: str) -> Value:
        frame = self.frames[-1]
        if name in frame.env:
            return frame.env[name]
        if name in frame.imports:
            return self.imported(frame.file, frame.imports[name])
        return self.global_(frame.file, name)

    def global_(self, file: File, name: str) -> Value:
        """Return what is known of a name of a file."""
        key = (id(file), name)
        if key not in self.globals:
            self.globals[key] = Value()
            if name in file.functions:
                value = Value(function=Called(file.functions[name], file), name=name)
            elif name in file.classes:
                value = Value(name=name)
            elif name in file.imports:
                value = self.imported(file, file.imports[name])
            elif name in file.assigned:
                value = self.constant(file.assigned[name], file)
                if is_object(file.assigned[name]):
                    value = replace(value, labels=value.labels | {SHARED})
            else:
                value = Value(name=name)
            self.globals[key] = value
        return self.globals[key]

    def imported(self, file: File, full: str) -> Value:
        module, _, name = full.rpartition(".")
        if module and (near := file.near(module)) is not None:
            return self.global_(near, name)
        return Value(name=full)

    def attribute(self, base: Value, attr: str) -> Value:
        if base.name == "self" and attr == "__dict__":
            return Value(fields=self.attributes)
        if base.name == "self" or (base.name == "cls" and not base.labels):
            if attr in self.attributes:
                return self.attributes[attr]
            if attr in self.methods:
                return Value(function=Called(self.methods[attr], self.file, bound=True))
            return Value(name=f"self.{attr}")
        if base.fields is not None and attr in base.fields:
            return base.fields[attr]
        if base.made_of is not None:
            found = self.method(base, base.made_of, attr)
            if found is not None:
                return found
        if TASK in base.labels:
            return target() if attr == "target" else Value(frozenset({"task text"}))
        if TURN in base.labels:
            texts = {
                "text": response(),
                "number": Value() if self.turn is None else Value(const=self.turn),
                "calls": Value(READ_TEXT | {CALLS, LISTED}),
            }
            return texts.get(attr, Value(READ_TEXT))
        if ROLLOUT in base.labels:
            texts = {
                "response": response(),
                "rewards": Value(),
                "prompt": Value(frozenset({PROMPT})),
            }
            return texts.get(attr, Value(frozenset({READS_RESPONSE})))
        file = self.frames[-1].file
        if attr == "returncode":
            return Value(frozenset({EXIT}))
        near = file.near(base.name) if base.name and not base.labels else None
        if near is not None and (near.has(attr) or file.near(f"{base.name}.{attr}") is None):
            return self.global_(near, attr)
        kept = READS | {RESPONSE} | ({TARGET} if attr in ANSWERS else frozenset[str]())
        name = f"{base.name}.{attr}" if base.name else ""
        written = {OUTPUT} if attr == "stdout" and base.name != "sys" else set[str]()
        return Value(base.all & kept | written, name=name)

    def method(self, owner: Value, of: Class, name: str) -> Value | None:
        """Return a method of an object, bound to it, or what a property gives; None if its class
        has no such method."""
        found = class_methods(of.file, of.node).get(name)
        if found is None:
            return None
        called = Called(found, of.file, bound=not _is_static(found), owner=owner)
        return self.apply(called, [], {}) if _is_property(found) else Value(function=called)

    def above(self) -> Value:
        """Return what `super()` gives: the methods of the bases of the class whose method runs."""
        frame = self.frames[-1]
        names = [a.arg for a in getattr(getattr(frame.node, "args", None), "args", ())]
        this = frame.env.get(names[0]) if names else None
        node = next((c for c in frame.file.classes.values() if frame.node in c.body), None)
        if node is None or this is None:
            return Value(name="super()")
        methods = class_methods(frame.file, node, own=False).items()
        fields = {
            name: Value(function=Called(found, frame.file, bound=not _is_static(found), owner=this))
            for name, found in methods
        }
        return Value(name="super()", fields=fields)

    def apply(
        self, function: Called, args: list[Value], words: Mapping[str, Value]
    ) -> Value:  # fmt: skip
        """Run a function, and return what it returns."""
        raise NotImplementedError

    def item(self, base: Value, index: Value, node: ast.expr) -> Value:
        if base.fields is not None and isinstance(index.const, str):
            if index.const in base.fields:
                return base.fields[index.const]
            return Value(base.labels & READS)
        if base.name == "os.environ" and is_secret(index.const):
            return Value(frozenset({SECRET}))
        kept = READS | {RESPONSE, FILE, DIGITS, SECRET, HEAD} | NUMERIC
        is_tuple = LISTED in base.labels and TEXTS not in base.labels
        if FOUND in base.labels and isinstance(index.const, int) and not is_tuple:
            kept |= {TEXT}
            base = replace(base, labels=base.labels | {TEXT})
        if ANSWER in base.labels:
            kept |= {TARGET, ANSWER}
        if isinstance(index.const, str) and index.const in ANSWERS:
            kept |= {TARGET}
        if {IS_TARGET, TEXT} <= base.labels and RESPONSE in index.all:
            kept |= {TARGET}  # the policy can read the text letter by letter
        found = frozenset[str]()
        if isinstance(node, ast.Slice):
            found = (base.all & kept) | (index.all & (READS | {VERDICT}))
            most = self.value(most_).const if (most_ := first_of(node)) is not None else 0
            if IS_RESPONSE in base.labels and isinstance(most, int) and most > 0:
                self.note("head", node, None, values=(base, Value(const=most)))
                found |= {HEAD}
            found |= base.labels & (KINDS | MEMBER_OF.keys())
        else:
            kept |= {DEFAULT, PAID} | (base.labels & ONE_OBJECT)
            found = (base.all & kept) | (index.all & (READS | {VERDICT}))
            found |= {MEMBER_OF[label] for label in base.labels & MEMBER_OF.keys()}
            is_text = TEXT in base.labels and FOUND not in base.labels and LISTED not in base.labels
            found |= {LETTER, TEXT} if is_text and isinstance(index.const, int) else set()
        return Value(found)

    def assign(self, target: ast.expr, value: Value, source: ast.expr | None) -> None:
        frame = self.frames[-1]
        tests = frame.control & TESTS
        if tests - value.labels:
            value = replace(value, labels=value.labels | tests)
        match target:
            case ast.Name(id=name):
                if name in frame.globals:
                    self.globals[id(frame.file), name] = Value()
                frame.env[name] = value
            case ast.Tuple(elts=[key, held]) if value.name == PAIR and value.fields:
                self.assign(key, value.fields["key"], None)
                self.assign(held, value.fields["value"], None)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                pair = source if isinstance(source, ast.Tuple | ast.List) else None
                for index, part in enumerate(parts):
                    same = pair is not None and len(pair.elts) == len(parts)
                    inner = self.value(pair.elts[index]) if same else element(value)  # type: ignore[union-attr]
                    self.assign(part, inner, None)
            case ast.Starred(value=inner_):
                self.assign(inner_, element(value), None)
            case ast.Attribute(value=owner, attr=attr):
                base = self.value(owner)
                self.note("change", target, target, values=(value,))
                if base.made_of is not None and isinstance(base.fields, dict):
                    kept = Value(value.all) if _holds(value, base.fields) else value
                    old = base.fields.get(attr)
                    base.fields[attr] = kept if old is None else join([old, kept])
                if base.name == "self":
                    old = self.attributes.get(attr)
                    if getattr(frame.node, "name", "") == "reset":
                        value = replace(value, labels=value.labels | {KEPT})
                    self.attributes[attr] = value if old is None else join([old, value])
            case ast.Subscript(value=owner, slice=index_):
                base, key = self.value(owner), self.value(index_).const
                self.note("change", target, owner, values=(value, self.value(index_)),
                          receiver=base)  # fmt: skip
                fields = dict(base.fields or {})
                if isinstance(key, str):
                    fields[key] = join([fields[key], value]) if key in fields else value
                    changed = replace(base, fields=fields)
                else:
                    changed = replace(base, labels=base.labels | value.all, const=UNKNOWN)
                self.store(owner, changed)

    def store(self, owner: ast.expr, value: Value) -> None:
        """Store a changed object under the name or attribute that it was read from."""
        match owner:
            case ast.Name(id=name) if name in self.frames[-1].env:
                self.frames[-1].env[name] = value
            case ast.Attribute(value=base, attr=attr) if self.value(base).name == "self":
                old = self.attributes.get(attr)
                self.attributes[attr] = value if old is None else join([old, value])

    def note(
        self, kind: str, node: ast.AST, of: ast.expr | None, *, name: str = "",
        values: tuple[Value, ...] = (), keywords: Mapping[str | None, Value] | None = None,
        receiver: Value | None = None,
    ) -> None:  # fmt: skip
        frame = self.frames[-1]
        if kind == "change" and of is not None:
            name = self.place(of)
        event = Event(
            kind=kind, node=node, file=frame.file, name=name, values=values,
            keywords=keywords or {}, receiver=receiver or Value(), blocking=frame.blocking,
            taken=bool(frame.env[TAKEN].const), control=frame.control,
        )  # fmt: skip
        self.events.append(event)

    def place(self, node: ast.expr) -> str:
        """Return the name of a changed object: `global NAME`, its dotted name, or ""."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            frame = self.frames[-1]
            is_global = node.id in frame.file.assigned and node.id not in frame.env
            return f"global {node.id}" if is_global else self.name(node.id).name
        return self.value(node).name if isinstance(node, ast.Attribute) else ""


def first_of(node: ast.Slice) -> ast.expr | None:
    """Return `n` of `text[:n]`; None for other slices."""
    begins = node.lower is None or (isinstance(node.lower, ast.Constant) and not node.lower.value)
    return node.upper if begins and node.step is None else None


MADE = ("list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict", "connect")
"""functions that make an object which can be changed; `connect` of a database"""


def is_object(node: ast.expr) -> bool:
    """True for an expression that makes a new object which can be changed."""
    if isinstance(node, ast.Call):
        return _last(node.func) in MADE
    kinds = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(node, kinds)


def class_methods(
    file: File, node: ast.ClassDef | None, *, own: bool = True
) -> dict[str, Function]:
    """Return the methods of a class and of its bases in the file; without `own`, of the bases."""
    found: dict[str, Function] = {}
    for base in reversed(node.bases) if node is not None else ():
        inner = file.classes.get(base.id) if isinstance(base, ast.Name) else None
        found |= class_methods(file, inner) if inner is not node else {}
    body = node.body if node is not None and own else ()
    return found | {item.name: item for item in body if isinstance(item, Function)}


def _is_static(node: Function) -> bool:
    return "staticmethod" in map(_last, node.decorator_list)


def _is_property(node: Function) -> bool:
    return not {"property", "cached_property"}.isdisjoint(map(_last, node.decorator_list))


def _last(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _holds(value: Value, fields: Mapping[str, Value]) -> bool:
    """True if the fields are those of a value, or of a part of it."""
    inner = value.fields
    return inner is fields or any(_holds(each, fields) for each in (inner or {}).values())
