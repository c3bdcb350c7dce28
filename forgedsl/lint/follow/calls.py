"""Follows calls whose arguments are labels. A function that was read from a file is run on the
labels. For other functions, tables here say what they do to labels."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from forgedsl.lint.follow.constants import bounded, converted
from forgedsl.lint.follow.expressions import Expressions
from forgedsl.lint.follow.files import File, Function
from forgedsl.lint.follow.state import class_methods, is_object
from forgedsl.lint.follow.values import (
    ANSWER,
    ARGUMENTS,
    CACHED,
    CALLS,
    CHARACTERS,
    CLOCK,
    CONTENT,
    DEFAULT,
    DIGITS,
    DISTANCE,
    DRAWN,
    ESCAPED,
    EXIT,
    FILE,
    FIXED,
    FLOAT,
    FLOORED,
    FOUND,
    HEAD,
    LIST_OF,
    LISTED,
    LOWERED,
    MEMBER_OF,
    NET,
    NUMBER,
    OF_DEFAULT,
    OTHER,
    PAID,
    PAIRS,
    POLICY,
    RAISED,
    READS,
    READS_TARGET,
    RELATIVE,
    RESPONSE,
    SECRET,
    SHARED,
    STRIPPED,
    TAKEN,
    TARGET,
    TEXT,
    TEXTS,
    UNKNOWN,
    UNORDERED,
    VALUES,
    VERDICT,
    WHOLE,
    WHOLE_NUMBER,
    WORDS_OF,
    Called,
    Class,
    Env,
    Frame,
    Labels,
    Returned,
    Value,
    all_of,
    content,
    element,
    is_secret,
    join,
    numbers,
    positional,
    reads,
)
from forgedsl.records import replace

NUMBERS = ("int", "float", "Decimal", "Fraction")
TRIMS = (
    "str", "strip", "lstrip", "rstrip", "lower", "upper", "casefold", "int", "float", "replace",
    "normalize", "removesuffix", "removeprefix", "Decimal", "Fraction",
)  # fmt: skip
"""functions whose result has the meaning of their argument"""
CONTAINS = (
    "repr", "format", "dumps", "join", "title", "encode", "decode", "ljust", "rjust", "center",
    "zfill", "escape", "capitalize", "list", "tuple", "Start", "loads", "load",
    "literal_eval",
)  # fmt: skip
"""functions whose result has their arguments in it"""
PASSED = frozenset({VERDICT, FILE, DEFAULT, PAID, DISTANCE, FLOORED, RELATIVE})
"""labels that functions in ROUNDS pass on"""
ROUNDS = ("float", "int", "bool", "round", "min", "max", "abs", "sum")
SEARCHES = ("search", "match", "fullmatch", "findall", "finditer")
LISTS = ("findall", "finditer", "split", "splitlines", "list", "sorted", "set", "dict", "tuple")
CHANGES = (
    "append", "extend", "insert", "add", "update", "setdefault", "appendleft",
)  # fmt: skip
THREADS = ("asyncio.to_thread", "anyio.to_thread.run_sync")
PARTS = ("partition", "rpartition", "splitlines", "group")
AWAITS = ("wait_for", "shield", "gather")
READERS = ("read_text", "read", "open")
CLOCKS = (
    "time.time", "time.monotonic", "time.perf_counter", "time.time_ns", "time.monotonic_ns",
    "time.perf_counter_ns", "datetime.datetime.now", "datetime.datetime.utcnow",
)  # fmt: skip
PATHS = ("pathlib.Path", "os.path.join")
SPELLED = {
    "lower": frozenset({LOWERED}), "casefold": frozenset({LOWERED}), "upper": frozenset({RAISED}),
    "strip": frozenset({STRIPPED}), "float": frozenset({STRIPPED}), "int": frozenset({STRIPPED}),
}  # fmt: skip
VARIABLES = ("os.environ.get", "os.getenv", "os.environ.pop")
CACHES = ("cache", "lru_cache", "cached", "alru_cache")
DRAWS = ("random.sample", "random.choice", "random.choices")
NOT_DIGITS = (r"\D", r"\D+", r"[^0-9]", r"[^0-9]+", r"[^\d]", r"[^\d]+")
"""patterns that match everything but digits"""
REQUESTS = ("requests.", "httpx.", "urllib.request.", "aiohttp.", "openai.", "anthropic.")
MODEL, HOST = ("model", "model_name", "model_id"), ("base_url", "api_base", "endpoint")
"""arguments that name the model of a request, and its server"""
DEPTH = 7
"""maximum depth of nested calls that are followed"""


class Calls(Expressions):
    """The part of a symbolic run that follows calls; see `lint.follow.run`."""

    def call_value(self, node: ast.Call) -> Value:
        """Return the value of a call, and add the call to the events."""
        if isinstance(node.func, ast.Attribute):
            method = node.func.attr
            receiver = self.value(node.func.value)
            function = self.attribute(receiver, method)
        else:
            method, receiver, function = "", None, self.value(node.func)
        args = [self.value(each) for each in node.args]
        words = {word.arg: self.value(word.value) for word in node.keywords}
        if function.preset is not None:
            args = [*function.preset[0], *args]
            preset: dict[str | None, Value] = dict(function.preset[1].items())
            words = preset | words
        name = function.name or method
        self.note("call", node, None, name=name, values=tuple(args), keywords=words,
                   receiver=receiver)  # fmt: skip
        if name == "any" and len(node.args) == 1 and id(node.args[0]) in self.compared:
            self.note("any", node, None, values=self.compared[id(node.args[0])])
        if function.function is not None:
            return self.apply(function.function, args, words)
        skipped = 1 if method == "run_in_executor" else 0
        if (name in THREADS or skipped) and len(args) > skipped:
            called = args[skipped].function
            if called is not None:
                return self.apply(called, args[skipped + 1 :], words, threaded=True)
        if name == "super" and not args:
            return self.above()
        if name == "functools.partial" and args:
            named = {key: value for key, value in words.items() if key}
            return replace(args[0], preset=(tuple(args[1:]), named))
        if name in self.frames[-1].file.classes:
            return self.new_object(self.frames[-1].file.classes[name], args, words)
        if isinstance(node.func, ast.Attribute) and method in CHANGES and receiver is not None:
            self.note("change", node, node.func.value, values=tuple(args))
            labels = receiver.labels | content(args)
            self.store(node.func.value, replace(receiver, labels=labels))
        return self._external_call(name, receiver, args, words)

    def _external_call(
        self, name: str, receiver: Value | None, args: list[Value], words: Mapping[Any, Value]
    ) -> Value:
        """Return the value of a call of a function whose source was not read."""
        short = name.rpartition(".")[2]
        everything = [*args, *words.values(), *([receiver] if receiver is not None else [])]
        labels = self.asked(receiver, args, words, reads(everything))
        if name == "vars" and args and args[0].name == "self":
            return Value(fields=self.attributes)
        if name == "getattr" and len(args) > 1 and isinstance(args[1].const, str):
            return self.attribute(args[0], args[1].const)
        marked = _marked(name, args, everything) or self._of_builtin(name, receiver, args, labels)
        if marked is not None:
            return marked
        if short in TRIMS:
            return self._trimmed(name, receiver, args, labels)
        if short == "set" and args and any(args[0].fields or ()):
            return Value(content(args) | {UNORDERED, LISTED})  # the keys of a dict, which are texts
        if short == "iter" and args:
            return args[0]
        if short in CONTAINS or short in ("join", "split", "dict"):
            return self._container(short, receiver, args, words)
        if short in ROUNDS and receiver is None:
            return self._rounded(short, args, labels)
        if short in ("any", "all"):
            return Value(labels | (all_of(args) & {VERDICT, EXIT, CLOCK}))
        if short in SEARCHES or short in PARTS:
            return self._search(short, receiver, args, labels)
        labels |= numbers(args) - {*ARGUMENTS} if name.startswith("math.") else set()
        labels |= {NET} if name.startswith(REQUESTS) else set()
        labels |= {FILE} if short in READERS else set()
        if short in AWAITS or short.endswith(("Error", "Exception")):
            labels |= content(args)
        return Value(labels, name=f"{name}()" if "." in name or name[:1].isupper() else "")

    def _of_builtin(
        self, name: str, receiver: Value | None, args: list[Value], labels: Labels
    ) -> Value | None:
        """Return the value of `map`, `filter` and `len`, and of `items`, `values` and `get` of a
        dict whose fields are known; None for other functions."""
        short = name.rpartition(".")[2]
        if name in ("map", "filter") and len(args) == 2 and args[0].function is not None:
            made = self.apply(args[0].function, [element(args[1])], {})
            return Value(made.all & (READS | CONTENT | {VERDICT}) | {LISTED})
        if name == "map" and len(args) == 2 and args[0].name in (*NUMBERS, "str"):
            found = LIST_OF[NUMBER] if args[0].name in NUMBERS else TEXTS
            return Value(content([element(args[1])]) | {LISTED, found})
        if short in ("items", "values") and receiver is not None and receiver.fields is not None:
            held = receiver.labels & (READS | CONTENT)
            return Value(held, fields=receiver.fields, name=PAIRS if short == "items" else VALUES)
        if short == "len" and len(args) == 1:
            is_text = RESPONSE in args[0].labels and LISTED not in args[0].labels
            counted = args[0].labels & {CALLS} | ({CHARACTERS} if is_text else set())
            return Value(labels | counted | {NUMBER})
        if short == "get" and receiver is not None and receiver.fields is not None and args:
            default = args[1] if len(args) > 1 else Value(const=None)
            known = receiver.fields.get(str(args[0].const))
            return known if known is not None else replace(default, labels=default.labels | labels)
        return None

    @staticmethod
    def _rounded(short: str, args: list[Value], labels: Labels) -> Value:
        """Return the value of a function in ROUNDS, whose result is a number like its arguments."""
        labels |= all_of(args) & PASSED | numbers(args)
        labels -= {*ARGUMENTS} if short == "abs" else set()
        labels -= {CALLS} if short == "min" else set()
        share = max((each.share or float(TARGET in each.all) for each in args), default=0.0)
        return Value(labels, const=bounded(short, args), share=share)

    @staticmethod
    def _search(short: str, receiver: Value | None, args: list[Value], labels: Labels) -> Value:
        """Return the value of a search in a text, or of a function that divides one."""
        everything = [*args, *([receiver] if receiver is not None else [])]
        held = all_of(everything)
        labels |= held & ({RESPONSE, FILE, HEAD} | ({TARGET, ANSWER} if ANSWER in held else set()))
        labels |= {LISTED} if short in LISTS else set()
        labels |= {FOUND} if short in SEARCHES else set()
        labels |= {TEXT} if short == "group" else set()
        if short == "findall":
            compiled = receiver.fields.get("pattern") if receiver and receiver.fields else None
            pattern = (compiled or (args[0] if args else Value())).const
            labels |= {TEXTS} if groups_of(pattern) in (0, 1) else set()
        return Value(labels)

    @staticmethod
    def asked(
        receiver: Value | None, args: list[Value], words: Mapping[Any, Value], labels: Labels
    ) -> Labels:
        """Return the labels of a reply: POLICY and OTHER say which model gave it."""
        named = [words[key] for key in MODEL if key in words]
        hosts = [words[key] for key in HOST if key in words]
        is_own = receiver is not None and POLICY in receiver.labels
        if any(each.name in ("model.url", "model.name") for each in (*args, *words.values())):
            foreign = receiver is not None and OTHER in receiver.labels
            return labels if foreign else (labels - {OTHER}) | {POLICY}
        if is_own or (receiver is not None and "embed" in receiver.name):
            return labels
        if any(isinstance(each.const, str) for each in named) or any(map(_is_remote, hosts)):
            labels |= {OTHER}
        return labels - {POLICY}

    def _trimmed(
        self, name: str, receiver: Value | None, args: list[Value], labels: Labels
    ) -> Value:
        """Return the value of a function in TRIMS, whose result means the same as its argument."""
        short = name.rpartition(".")[2]
        first = receiver if receiver is not None and receiver.name == "" else None
        source = first if first is not None else (args[0] if args else Value())
        if name == "unicodedata.normalize" and len(args) > 1:
            source = args[1]
        const = source.const if short in ("float", "int", "str") else UNKNOWN
        kept = source.all & (READS | CONTENT | WHOLE)
        kept |= {NUMBER} if short in NUMBERS else {TEXT} if short != "normalize" else set()
        kept |= SPELLED.get(short, frozenset())
        if short == "int" and FLOAT in source.labels:
            kept |= {WHOLE_NUMBER}
        if short == "float":
            kept = (kept - {WHOLE_NUMBER}) | {FLOAT}
        return Value(labels | kept, const=converted(short, const))

    def _container(
        self, short: str, receiver: Value | None, args: list[Value], words: Mapping[Any, Value]
    ) -> Value:
        """Return the value of a function whose result, a text or a list, contains its arguments."""
        everything = [*args, *words.values(), *([receiver] if receiver is not None else [])]
        labels = content(everything)
        if short in ("loads", "load", "literal_eval"):
            labels -= {ANSWER}  # a record: its parts may describe the task
        if short in ("split", "splitlines"):
            labels |= {TEXTS}
        if short in ("list", "tuple", "sorted") and args:
            labels |= args[0].labels & MEMBER_OF.keys()
        if short in ("list", "tuple", "set") and receiver is None:
            labels |= {label for value in args for label in value.labels if label == UNORDERED}
        if short == "dict" and not args:
            return Value(frozenset({LISTED}), fields={k: v for k, v in words.items() if k})
        if short == "split" and not args and receiver is not None:
            labels |= {WORDS_OF[label] for label in receiver.labels & WHOLE}
        if short == "join" and len(args) == 1:
            labels |= {label for label in WHOLE if WORDS_OF[label] in args[0].labels}
        if short == "escape" and args:
            labels |= {ESCAPED} | (args[0].labels & WHOLE)
        return Value(labels | ({LISTED} if short in LISTS else set()))

    def new_object(
        self, node: ast.ClassDef, args: list[Value], words: Mapping[Any, Value]
    ) -> Value:
        """Return a new object of a class of the file, with the attributes that `__init__` sets, or
        with the arguments as its fields."""
        file = self.frames[-1].file
        made = class_methods(file, node).get("__init__")
        if made is not None:
            this = Value(reads((*args, *words.values())), fields={}, made_of=Class(node, file))
            self.apply(Called(made, file, bound=True, owner=this), args, words)
            return this
        names = [
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
        fields = dict(zip(names, args, strict=False)) | {k: v for k, v in words.items() if k}
        labels = frozenset() if names else reads((*args, *words.values()))
        return Value(labels, fields=fields, made_of=Class(node, file))

    def apply(
        self,
        function: Called,
        args: list[Value],
        words: Mapping[str | None, Value] | Mapping[str, Value],
        *,
        top: bool = False,
        threaded: bool = False,
    ) -> Value:
        """Run a function, and return what it returns."""
        node = function.node
        if len(self.frames) >= DEPTH or any(f.node is node for f in self.frames):
            return Value(reads(value for value in (*args, *words.values())))
        outer = self.frames[-1] if self.frames else None
        awaits = isinstance(node, ast.AsyncFunctionDef)
        blocking = awaits or (outer is not None and outer.blocking and not threaded)
        env = self._bound(function, args, words)
        env[TAKEN] = outer.env[TAKEN] if outer is not None else Value(const=False)
        frame = Frame(node, function.file, env, blocking)
        frame.control = outer.control if outer is not None else frozenset()
        self.frames.append(frame)
        if isinstance(node, ast.Lambda):
            value = self.value(node.body)
        else:
            falls = self.block(node.body)
            if frame.yielded:
                falls = False
                given = content(frame.yielded) | (frame.control & READS)
                frame.returned = [(Value(given | {LISTED}), node, frame.env[TAKEN], frame.control)]
            self.raised = not falls and not frame.returned and not _waits(node)
            if (falls and not frame.returned) or (falls and not top):
                frame.returned.append((Value(const=None), node, frame.env[TAKEN], frame.control))
            value = self.joined_return(frame)
            if _is_cached(node):
                value = replace(value, labels=value.labels | {CACHED})
        self.frames.pop()
        if top:
            self.returned += [
                Returned(value=v, node=at, taken=bool(t.const), control=control)
                for v, at, t, control in frame.returned
            ]
        if outer is not None and self.failing is not None:
            outer.env[TAKEN] = frame.env[TAKEN] if not frame.returned else self.taken(frame)
        return value

    def _bound(
        self,
        function: Called,
        args: list[Value],
        words: Mapping[str | None, Value] | Mapping[str, Value],
    ) -> Env:
        """Return the parameters of a function with what they are given."""
        node = function.node
        env: Env = dict(function.closure or {})
        names = [a.arg for a in positional(node)]
        if function.bound and names:
            env[names.pop(0)] = function.owner or Value(name="self")
        defaults = node.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=False):
            env[name] = self.default(default, function.file)
        for a, default_ in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            env[a.arg] = self.default(default_, function.file) if default_ else Value()
        for name in names[len(args) :]:
            env.setdefault(name, Value())
        env.update(zip(names, args, strict=False))
        known = {*names, *(a.arg for a in node.args.kwonlyargs)}
        env.update({word: v for word, v in words.items() if word is not None and word in known})
        if node.args.vararg:
            env[node.args.vararg.arg] = Value(all_of(args[len(names) :]))
        if node.args.kwarg:
            rest = {w: v for w, v in words.items() if w is not None and w not in known}
            env[node.args.kwarg.arg] = Value(fields=rest)
        return env

    def taken(self, frame: Frame) -> Value:
        return Value(const=any(taken.const for _, _, taken, _ in frame.returned))

    def joined_return(self, frame: Frame) -> Value:
        returned = frame.returned
        if any(taken.const for _, _, taken, _ in returned):
            returned = [each for each in returned if each[2].const]
        value = join([v for v, _, _, _ in returned])
        outer = self.frames[-2].control if len(self.frames) > 1 else frozenset[str]()
        tests = frozenset[str]().union(*(control for _, _, _, control in returned)) - outer
        return replace(value, labels=value.labels | tests)

    def default(self, node: ast.expr, file: File) -> Value:
        if is_object(node):
            return Value(frozenset({SHARED, OF_DEFAULT}))  # made once, when the function is defined
        return Value(const=node.value) if isinstance(node, ast.Constant) else Value()


def groups_of(pattern: object) -> int:
    """Return the number of groups of a pattern; -1 if it is not known."""
    try:
        return re.compile(pattern).groups if isinstance(pattern, str) else -1
    except re.error:
        return -1


def _is_cached(node: Function) -> bool:
    """True if a decorator keeps the results of a function, and returns them again."""
    made = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return any(getattr(m, "attr", getattr(m, "id", "")) in CACHES for m in made)


def _waits(node: ast.AST) -> bool:
    """True if a function has a `while` loop: it may run without end instead of raising."""
    return any(isinstance(each, ast.While) for each in ast.walk(node))


def _is_fixed(value: Value) -> bool:
    """True for a path that does not change between calls."""
    return FIXED in value.labels or isinstance(value.const, str)


def _marked(name: str, args: list[Value], everything: list[Value]) -> Value | None:
    """Return the value of a function whose result gets a label of its own: a clock, a path, a
    secret, a draw. None for other functions."""
    labels = reads(everything)
    if name == "tempfile.gettempdir":
        return Value(frozenset({FIXED}))
    if name in PATHS and args and all(_is_fixed(value) for value in args):
        return Value(labels | {FIXED}, name="Path()")
    if name == "re.compile" and args:
        return Value(labels, name="re.compile()", fields={"pattern": args[0]})
    if name in CLOCKS:
        return Value(frozenset({CLOCK}))
    if name in VARIABLES and args and is_secret(args[0].const):
        return Value(labels | {SECRET})
    if name in DRAWS and READS_TARGET in labels:
        return Value(content(everything) | {DRAWN})
    if name in ("re.sub", "re.subn") and len(args) > 2 and args[1].const == "":
        left = {DIGITS} if args[0].const in NOT_DIGITS else set[str]()
        return Value(content(args[2:]) | left)
    return None


def _is_remote(value: Value) -> bool:
    """True for the constant address of another machine."""
    address = value.const if isinstance(value.const, str) else ""
    return address.startswith("http") and not any(
        near in address for near in ("localhost", "127.0.0.1", "0.0.0.0")
    )
