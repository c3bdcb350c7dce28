"""What the expressions of a Python function are made of, read from its file, never run.

text = response.strip()           `text` depends on the parameter `response`
score = 0.0
score += 0.1 * text.count("a")    terms of `return score`: 0.0 and `text.count("a")`, upwards
P = re.compile(...)               `P.search(text)` searches for the pattern of P
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property, lru_cache

from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.lint.rewards import PythonReward
from forgedsl.records import dataclass
from forgedsl.types.effects import nodes_of
from forgedsl.types.intervals import ANY, BOOL, COUNT, INF, Interval, interval, point
from forgedsl.types.ops import TRANSFER

Function = ast.FunctionDef | ast.AsyncFunctionDef
SEARCHES = ("search", "match", "fullmatch", "findall", "finditer")
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div",
}  # fmt: skip
SAME = ("str", "strip", "lower", "upper", "casefold", "replace", "int", "float", "rstrip", "lstrip")
"""functions that keep the meaning of a text: they convert or strip it"""
TEXTUAL = SAME[:6]
"""those that have a text as result"""
REMOVE = (
    "replace", "removesuffix", "removeprefix", "split", "rsplit", "partition", "rpartition", "sub",
    "strip", "rstrip", "lstrip",
)  # fmt: skip
SEEK = (*SEARCHES, "compile", "startswith", "endswith", "find", "rfind", "index", "count")
RISING = ("sqrt", "log", "log1p", "log2", "log10", "exp", "atan", "tanh")
"""functions that rise with their argument; `tanh` and `atan` have a bound"""
NOT_NEGATIVE = interval(0.0, INF)
DEPTH = 8
"""assignments in a chain that are followed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of a score. `sign`: 1 if the score rises with it, -1 if it falls; `is_capped`: inside
    of `min`."""

    node: ast.expr
    sign: int
    is_capped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search of a regular expression in a text."""

    call: ast.Call
    method: str
    pattern: str
    subject: ast.expr


class Body:
    """The body of a function, with the names of its file."""

    def __init__(self, root: ast.AST, module: ast.Module) -> None:
        self.root = root
        self.module = module
        self.given: dict[str, list[ast.expr]] = {}
        """values that are assigned to local names; of a loop, what it runs over"""
        self.stated: dict[str, list[ast.Assign | ast.AnnAssign | ast.AugAssign]] = {}
        for node in nodes_of(root):
            for to, value in _bindings(node):
                self.given.setdefault(to, []).append(value)
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.stated.setdefault(target.id, []).append(node)
        self.constants = {
            target.id: node.value
            for node in module.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    # ---- what an expression depends on

    def names(self, node: ast.AST) -> frozenset[str]:
        """Return the names that an expression reads, directly or through local names."""
        found, pending = set[str](), [node]
        while pending:
            for each in nodes_of(pending.pop()):
                if isinstance(each, ast.Name) and each.id not in found:
                    found.add(each.id)
                    pending += self.given.get(each.id, [])
        return frozenset(found)

    def nodes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes of an expression, and of the values of the local names in it."""
        seen, pending = set[str](), [node]
        while pending:
            for each in nodes_of(pending.pop()):
                yield each
                if isinstance(each, ast.Name) and each.id not in seen:
                    seen.add(each.id)
                    pending += self.given.get(each.id, [])

    def value(self, node: ast.expr) -> ast.expr:
        """Return the value of a name that is assigned once; other expressions as they are."""
        for _ in range(DEPTH):
            values = self.given.get(node.id, []) if isinstance(node, ast.Name) else []
            if len(values) != 1:
                return node
            node = values[0]
        return node

    # ---- scores

    @cached_property
    def returned(self) -> list[ast.expr]:
        """Return the values that the function returns; of lists, their entries."""
        found = [n.value for n in nodes_of(self.root) if isinstance(n, ast.Return) and n.value]
        values = []
        for value in map(self.value, found):
            if isinstance(value, ast.ListComp):
                values.append(value.elt)
            else:
                values += value.elts if isinstance(value, ast.List) else [value]
        return values

    def terms(self) -> Iterator[Term]:
        """Yield the parts of the scores that the function returns."""
        for value in self.returned:
            yield from self._terms(value, 1, False, frozenset())

    def _terms(
        self, node: ast.expr, sign: int, capped: bool, seen: frozenset[str]
    ) -> Iterator[Term]:
        match node:
            case ast.Name(id=name) if name in self.stated and name not in seen:
                for statement in self.stated[name]:
                    way = sign
                    if isinstance(statement, ast.AugAssign):
                        way *= {ast.Add: 1, ast.Sub: -1}.get(type(statement.op), 0)
                    if way and statement.value is not None:
                        yield from self._terms(statement.value, way, capped, seen | {name})
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                yield from self._terms(inner, -sign, capped, seen)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                yield from self._terms(left, sign, capped, seen)
                other = sign if isinstance(op, ast.Add) else -sign
                yield from self._terms(right, other, capped, seen)
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as op, right=right):
                factor, factored = self.number(right), left
                if factor is None and isinstance(op, ast.Mult):
                    factor, factored = self.number(left), right
                if factor:
                    yield from self._terms(factored, sign if factor > 0 else -sign, capped, seen)
                elif factor is None and isinstance(op, ast.Div):
                    yield Term(node=node, sign=sign, is_capped=capped)
            case ast.BinOp(left=left, op=ast.Pow(), right=right) if (self.number(right) or 0) > 0:
                yield from self._terms(left, sign, capped, seen)
            case ast.Call(func=ast.Attribute(attr=name), args=[inner]) if name in RISING:
                bounded = capped or name in ("tanh", "atan")
                yield from self._terms(inner, sign, bounded, seen)
            case ast.IfExp(body=one, orelse=two):
                yield from self._terms(one, sign, capped, seen)
                yield from self._terms(two, sign, capped, seen)
            case ast.Call(func=ast.Name(id="float" | "int" | "round" | "sum"), args=[inner, *_]):
                element = inner.elt if isinstance(inner, ast.GeneratorExp | ast.ListComp) else inner
                yield from self._terms(element, sign, capped, seen)
            case ast.Call(func=ast.Name(id="min" | "max" as bound), args=args):
                for each in args:
                    yield from self._terms(each, sign, capped or bound == "min", seen)
            case _:
                yield Term(node=node, sign=sign, is_capped=capped)

    def number(self, node: ast.expr) -> float | None:
        """Return the value of a constant number, or of a constant of the file."""
        if isinstance(node, ast.Name) and node.id not in self.given:
            node = self.constants.get(node.id, node)
        elif isinstance(node, ast.Name):
            node = self.value(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.number(node.operand)
            return None if inner is None else -inner
        value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]

    def range(self, node: ast.expr, depth: int = 0) -> Interval:
        """Return an interval for the value of a number, through sums, products, lengths, bounds."""
        number = self.number(node)
        if number is not None:
            return point(number)
        node = self.value(node)
        inner = [] if depth > DEPTH else _operands(node)
        ranges = [self.range(each, depth + 1) for each in inner]
        match node:
            case ast.BinOp(op=op) if type(op) in OPERATORS and ranges:
                return TRANSFER[OPERATORS[type(op)]](*ranges)
            case ast.UnaryOp(op=ast.USub()) if ranges:
                return TRANSFER["neg"](*ranges)
            case ast.Call(func=ast.Name(id="len")):
                return COUNT
            case ast.Call(func=ast.Name(id="abs")):
                return NOT_NEGATIVE
            case ast.Call(func=ast.Name(id="float" | "bool" | "int"), args=[arg]):
                return BOOL if isinstance(self.value(arg), ast.Compare | ast.BoolOp) else ANY
            case ast.Call(func=ast.Name(id="min"), args=[_, _]) if ranges:
                return interval(min(r.lo for r in ranges), min(r.hi for r in ranges))
            case ast.Call(func=ast.Name(id="max"), args=[_, _]) if ranges:
                return interval(max(r.lo for r in ranges), max(r.hi for r in ranges))
        return ANY

    # ---- texts

    def searched_texts(self, part: str) -> Iterator[tuple[ast.AST, str]]:
        """Yield the texts with `part` that the function looks for: in comparisons, searches,
        `startswith` and the like. Nothing if it removes such a text, or splits at it."""
        found = [each for each in self._texts if part in each[1].replace("\\", "")]
        if not any(how == "removed" for _, _, how in found):
            yield from ((node, text) for node, text, how in found if how == "sought")

    @cached_property
    def _texts(self) -> list[tuple[ast.AST, str, str]]:
        """The texts with a `<` that the function uses, also in functions of the file that it names.
        Each has its use: `sought` or `removed`."""
        functions = {n.name: n for n in self.module.body if isinstance(n, Function)}
        found, seen, pending = [], set[str](), [self.root]
        while pending:
            for node in nodes_of(pending.pop()):
                called = getattr(node, "func", None)
                method = getattr(called, "attr", getattr(called, "id", ""))
                how = "removed" if method in REMOVE else ""
                how = "sought" if method in SEEK or isinstance(node, ast.Compare) else how
                for child in ast.iter_child_nodes(node) if how else ():
                    text = self._text(child) if isinstance(child, ast.expr) else None
                    found += [(child, text, how)] if text is not None and "<" in text else []
                if isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    pending += [functions[node.id]] if node.id in functions else []
                    pending += [self.constants[node.id]] if node.id in self.constants else []
        return found

    # ---- patterns

    @cached_property
    def searches(self) -> tuple[Search, ...]:
        """The searches for patterns that are written in the file."""
        return tuple(self._searches())

    def _searches(self) -> Iterator[Search]:
        for node in nodes_of(self.root):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            method, owner = node.func.attr, node.func.value
            if method not in SEARCHES or not node.args:
                continue
            if isinstance(owner, ast.Name) and owner.id == "re":
                pattern, subject = self._text(node.args[0]), node.args[1:2]
            else:
                pattern, subject = self._compiled(owner), node.args[:1]
            if pattern is not None and subject:
                yield Search(call=node, method=method, pattern=pattern, subject=subject[0])

    def _compiled(self, node: ast.expr) -> str | None:
        """Return the pattern of `re.compile(...)`, or of a name for it."""
        if isinstance(node, ast.Name):
            node = self.constants.get(node.id, self.value(node))
        name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
        is_compiled = isinstance(node, ast.Call) and name == "compile" and bool(node.args)
        return self._text(node.args[0]) if is_compiled else None  # type: ignore[attr-defined]

    def _text(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            node = self.constants.get(node.id, self.value(node))
        value = node.value if isinstance(node, ast.Constant) else None
        return value if isinstance(value, str) else None


def _operands(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=inner):
            return [inner]
        case ast.Call(func=ast.Name(id="min" | "max"), args=args):
            return args
    return []


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a node binds, with what they are made of."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            targets = [target]
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            targets = [target]
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            targets = [target]
        case ast.comprehension(target=target, iter=value):
            targets = [target]
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            targets = [target]
        case _:
            return
    for target in targets:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, part in zip(target.elts, value.elts, strict=False):
                if isinstance(one, ast.Name):
                    yield one.id, part
            continue
        for each in ast.walk(target):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                yield each.id, value


def body_of(reward: PythonReward) -> Body:
    """Return the body of a Python reward."""
    return reward.once(_body)


def _body(reward: PythonReward) -> Body:
    return Body(reward.definition, reward.module)


def parameters(reward: PythonReward, *sources: str) -> set[str]:
    """Return the parameters of a reward that get one of these sources: `response`, `target`."""
    inputs = inputs_of(reward.function)
    given = inputs.by_name if isinstance(inputs, Inputs) else {}
    named = {name for name, source in given.items() if source in sources}
    if isinstance(inputs, Inputs) and inputs.by_place:
        arguments = [argument.arg for argument in reward.definition.args.args]
        pairs = zip(arguments, inputs.by_place, strict=False)
        named |= {name for name, source in pairs if source in sources}
    return named


def texts_of(reward: PythonReward) -> set[str]:
    """Return the parameters that are, or hold, the response."""
    return parameters(reward, "response", "rollout", "messages")


def length_slope(reward: PythonReward) -> int:
    """Return 1 if the score rises with the number of characters or words of the response, -1 if it
    falls, 0 if neither is known."""
    return reward.once(_length_slope)


def _length_slope(reward: PythonReward) -> int:
    body, texts = body_of(reward), texts_of(reward)
    signs = {term.sign for term in body.terms() if is_length(body, term.node, texts)}
    return signs.pop() if len(signs) == 1 else 0


def is_length(body: Body, node: ast.expr, texts: set[str]) -> bool:
    """True for `len(response)`, `len(r.response)` and `len(response.split())`."""
    node = body.value(node)
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "len" or not node.args:
        return False
    inner = body.value(node.args[0])
    if isinstance(inner, ast.Call) and getattr(inner.func, "attr", "") in ("split", "encode"):
        inner = inner.func.value  # type: ignore[attr-defined]
    if isinstance(inner, ast.Attribute) and inner.attr == "response":
        inner = inner.value
    return name_of(inner) in texts


def name_of(node: ast.expr) -> str:
    """Return the name inside conversions: `target` for `str(target).strip().lower()`; "" if there
    is none."""
    while isinstance(node, ast.Call):
        called = node.func
        if getattr(called, "attr", getattr(called, "id", "")) not in SAME:
            return ""
        if isinstance(called, ast.Attribute):
            node = called.value
        elif len(node.args) == 1:
            node = node.args[0]
        else:
            return ""
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(maxsize=256)  # the same for all rewards, views and rules
def unpaid(module: ast.Module) -> frozenset[int]:
    """Return the comparisons by `in` after which the reward is 0 or less."""
    found = set[int]()
    for node in nodes_of(module):
        body = node.body[-1] if isinstance(node, ast.If) else None
        given = body.value if isinstance(body, ast.Return) else None
        if isinstance(node, ast.IfExp):
            given = node.body
        number = getattr(given, "value", None)
        is_zero = isinstance(number, int | float) and number <= 0
        if is_zero or isinstance(given, ast.UnaryOp):
            found |= {
                id(each)
                for each in ast.walk(node.test)  # type: ignore[attr-defined]
                if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.In)
            }
    return frozenset(found)
