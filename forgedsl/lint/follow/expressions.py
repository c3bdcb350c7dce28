"""Evaluates expressions to labels instead of values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from forgedsl.lint.follow.constants import compared, folded
from forgedsl.lint.follow.state import State
from forgedsl.lint.follow.values import (
    ARGUMENTS,
    CALLS,
    CLOCK,
    CLOSE,
    CONTENT,
    DEFAULT,
    DISTANCE,
    ESCAPED,
    EXIT,
    FILE,
    FIXED,
    FLOORED,
    FOUND,
    KEPT,
    LISTED,
    NUMERIC,
    PAID,
    READS,
    READS_TARGET,
    RELATIVE,
    RESPONSE,
    TESTS,
    UNKNOWN,
    UNORDERED,
    VERDICT,
    WHOLE,
    Called,
    Labels,
    Value,
    all_of,
    content,
    element,
    elements,
    join,
    meet,
    members,
    numbers,
    reads,
)
from forgedsl.records import replace

BORDERS = re.compile(r"(\\[bBs][*+]?|\(\?<?[!=][^)]*\)|\s)*")
"""parts of a pattern that are no text: borders of words, spaces, and tests of what stands beside"""


def bordered(parts: Iterable[Value]) -> Labels:
    """Return the labels of a text that is put between borders of words: a pattern that finds it."""
    others = [v for v in parts if not (isinstance(v.const, str) and BORDERS.fullmatch(v.const))]
    is_one = len(others) == 1 and ESCAPED in others[0].labels
    return others[0].labels & WHOLE if is_one else frozenset()


def _text_of(parts: list[Value]) -> Value:
    return Value(content(parts) | bordered(parts))


class Expressions(State):
    """The part of a symbolic run that evaluates expressions; see `lint.follow.run`."""

    def call_value(self, node: ast.Call) -> Value:
        """Return the value of a call."""
        raise NotImplementedError

    def value(self, node: ast.expr) -> Value:
        """Return what is known of an expression."""
        self.budget -= 1
        if self.budget < 0:
            return Value()
        match node:
            case ast.Constant(value=constant):
                return Value(const=constant)
            case ast.Name(id=name):
                return self.name(name)
            case ast.Attribute(value=inner, attr=attr):
                return self.attribute(self.value(inner), attr)
            case ast.Subscript(value=inner, slice=index):
                return self.item(self.value(inner), self.value(index), index)
            case ast.Call():
                return self.call_value(node)
            case ast.NamedExpr():
                return self._named(node)
            case ast.JoinedStr(values=parts):
                return _text_of([self.value(part) for part in parts])
            case ast.Set(elts=parts):
                return self._set(parts)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self._list(parts)
            case (
                ast.Await(value=inner) | ast.FormattedValue(value=inner) | ast.Starred(value=inner)
            ):
                return self.value(inner)
            case ast.Dict(keys=keys, values=values):
                return self._dict(keys, values)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, op, self.value(left), self.value(right))
            case ast.UnaryOp(op=op_, operand=inner):
                return self._unary(op_, self.value(inner))
            case ast.BoolOp(op=op__, values=values):
                return self._bool(op__, values)
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self._if_expression(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Lambda():
                frame = self.frames[-1]
                return Value(function=Called(node, frame.file, closure=dict(frame.env)))
            case ast.Yield() | ast.YieldFrom():
                self._yield(node)
            case ast.Slice(lower=low, upper=high, step=step):
                return Value(content(map(self.value, filter(None, (low, high, step)))))
        return Value()

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target, value, node.value)
        return value

    def _list(self, parts: list[ast.expr]) -> Value:
        values = [self.value(part) for part in parts]
        return Value(content(values) | {LISTED} | members(values))

    def _set(self, parts: list[ast.expr]) -> Value:
        texts = any(isinstance(p, ast.Constant) and isinstance(p.value, str) for p in parts)
        labels = content(map(self.value, parts)) | {LISTED}
        return Value(labels | ({UNORDERED} if texts else set()))

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> None:
        value = self.value(node.value) if node.value is not None else Value(const=None)
        given = element(value) if isinstance(node, ast.YieldFrom) else value
        self.frames[-1].yielded.append(given)

    def _dict(self, keys: list[ast.expr | None], values: list[ast.expr]) -> Value:
        fields: dict[str, Value] = {}
        labels: Labels = frozenset({LISTED})
        for key, value in zip(keys, values, strict=True):
            inner = self.value(value)
            name = self.value(key).const if key is not None else UNKNOWN
            if isinstance(name, str):
                fields[name] = inner
            elif key is None and inner.fields is not None:
                fields |= inner.fields
            else:
                labels |= inner.all & (READS | CONTENT)
        return Value(labels, fields=fields)

    def _binary(self, node: ast.expr, op: ast.operator, left: Value, right: Value) -> Value:
        if isinstance(op, ast.Sub) and meet(left, right):
            self.note("difference", node, None, values=(left, right))
            passed = numbers((left, right)) - {*ARGUMENTS}
            return Value(reads((left, right)) | passed | {DISTANCE})
        if isinstance(op, ast.Sub):
            self.note("difference", node, None, values=(left, right))
        if isinstance(op, ast.Div | ast.FloorDiv):
            self.note("quotient", node, None, values=(left, right))
        return self.operation(op, left, right)

    def operation(self, op: ast.operator, left: Value, right: Value) -> Value:
        labels = reads((left, right))
        if isinstance(op, ast.Add | ast.Mod):
            labels |= content((left, right)) | bordered((left, right))
        else:
            labels |= (left.labels | right.labels) & {FILE, PAID}
        passed = numbers((left, right))
        known = UNKNOWN is not left.const or UNKNOWN is not right.const
        is_distance = isinstance(op, ast.Sub | ast.Div) and VERDICT not in left.all | right.all
        if (is_distance and not known) or isinstance(op, ast.Pow):
            passed -= {*ARGUMENTS}  # it is compared with something
        if isinstance(op, ast.Mult):
            passed -= left.labels & right.labels & {*ARGUMENTS}  # a square
        labels |= passed
        if isinstance(op, ast.Div) and FIXED in left.labels and isinstance(right.const, str):
            return Value(labels | {FIXED}, name="Path()")
        const = folded(op, left.const, right.const)
        if isinstance(op, ast.FloorDiv) and const is UNKNOWN:
            labels |= {FLOORED}
        if isinstance(op, ast.Div) and DISTANCE in left.labels and READS_TARGET in right.labels:
            labels |= {RELATIVE}
        share = _share(left, right) if isinstance(op, ast.Mult) else 0.0
        return Value(labels, const=const, share=share)

    def _unary(self, op: ast.unaryop, inner: Value) -> Value:
        const: Any = UNKNOWN
        if isinstance(op, ast.Not) and self.truth(inner) is not UNKNOWN:
            const = not self.truth(inner)
        elif inner.const is not UNKNOWN:
            if isinstance(op, ast.Not):
                const = not inner.const
            elif isinstance(op, ast.USub) and isinstance(inner.const, int | float):
                const = -inner.const
        return Value(inner.all & (READS | NUMERIC | {VERDICT, FILE}), const=const)

    def _bool(self, op: ast.boolop, nodes: list[ast.expr]) -> Value:
        values: list[Value] = []
        for node in nodes:
            value = self.value(node)
            values.append(value)
            known = self.truth(value)
            if known is not UNKNOWN and bool(known) == isinstance(op, ast.Or):
                return value if len(values) == 1 else replace(value, labels=all_of(values))
        left = [v for v in values if self.truth(v) is UNKNOWN]
        if not left:
            return values[-1]
        if isinstance(op, ast.Or) and values[-1].const is not UNKNOWN:  # `text or "0"`
            return Value(all_of(values) | self.default_of(values[-1]))
        labels = content(left) if isinstance(op, ast.Or) else reads(values)
        return Value(labels | (all_of(left) & {VERDICT, FOUND, EXIT, CLOCK}))

    def default_of(self, value: Value) -> Labels:
        is_text = isinstance(value.const, str) and value.const != ""
        is_number = isinstance(value.const, int | float) and not isinstance(value.const, bool)
        is_answer = is_text or (is_number and value.const >= 0)
        return frozenset({DEFAULT}) if is_answer else frozenset()

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        labels, op = reads(values) | (numbers(values) & {EXIT, CLOCK}), node.ops[0]
        self.note("compare", node, None, values=tuple(values))
        equal = isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
        if equal and len(values) == 2 and meet(*values):
            labels |= {VERDICT}
        labels |= frozenset().union(*(v.labels & {VERDICT} for v in values))
        labels |= {CLOSE} if any(DISTANCE in v.labels for v in values) else set()
        const = compared(op, *values) if len(values) == 2 else UNKNOWN
        return Value(labels, const=self._judged(op, values) if const is UNKNOWN else const)

    def _is_kept(self, values: list[Value]) -> bool:
        """True if text of the policy is compared with what `reset` has computed."""
        said = [value for value in values if RESPONSE in value.all]
        kept = [value for value in values if value.const is UNKNOWN and KEPT in value.labels]
        return len(said) == 1 and len(kept) == 1 and said != kept

    def _judged(self, op: ast.cmpop, values: list[Value]) -> Any:
        """Return the result of a comparison of an answer with the target, which follows from
        `verdict`; UNKNOWN for other comparisons."""
        if self.verdict is None or len(values) != 2:
            return UNKNOWN
        if isinstance(op, ast.Is | ast.IsNot) and FOUND in values[0].labels:
            return isinstance(op, ast.IsNot)
        same, other = (ast.Eq, ast.In), (ast.NotEq, ast.NotIn)
        if DISTANCE in values[0].labels:
            same, other = (ast.Lt, ast.LtE, ast.Eq), (ast.Gt, ast.GtE, ast.NotEq)  # type: ignore[assignment]
        elif not meet(*values) and (
            isinstance(op, ast.In | ast.NotIn) or not self._is_kept(values)
        ):
            return UNKNOWN
        if not isinstance(op, (*same, *other)):
            return UNKNOWN
        self.judged += 1
        return self.verdict == isinstance(op, same)

    def _if_expression(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        if self.truth(test) is not UNKNOWN:
            return self.value(node.body if self.truth(test) else node.orelse)
        frame, absent, found = self.frames[-1], self.absence(node.test), []
        for name, part in (("body", node.body), ("orelse", node.orelse)):
            frame.absent += absent == name
            found.append(self.absent(self.value(part)))
            frame.absent -= absent == name
        value = join(found)
        return replace(value, labels=value.labels | (test.all & TESTS))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Value:
        frame = self.frames[-1]
        before, labels = dict(frame.env), frozenset[str]()
        first: Value | None = None
        rounds = [list[Value]()]
        for part in node.generators:
            over = self.value(part.iter)
            first = first or over
            rounds = [elements(part.iter, over)] if part is node.generators[0] else rounds
            self.assign(part.target, element(over), None)
        found: list[Value] = []
        for each in rounds[0]:
            self.assign(node.generators[0].target, each, None)
            tests = [self.value(test) for part in node.generators for test in part.ifs]
            labels |= all_of(tests) & TESTS
            if len(rounds[0]) == 1 or all(self.truth(test) is not False for test in tests):
                made = node if isinstance(node, ast.DictComp) else None
                of = (made.key, made.value) if made is not None else (node.elt,)  # type: ignore[union-attr]
                values = [self.value(each) for each in of]
                found.append(Value(content(values)) if made is not None else values[0])
        inner = join(found)
        frame.env = before
        self.compared[id(node)] = (first or Value(), inner)
        kept = inner.all & (READS | CONTENT)
        is_set = isinstance(node, ast.SetComp) and not _is_number(node.elt)
        labels |= {UNORDERED} if is_set else members([inner])
        labels |= (first or Value()).labels & {CALLS}
        return Value(kept | labels | {LISTED})

    def absent(self, value: Value) -> Value:
        """Label a constant that is used where nothing was found in the answer."""
        is_text = isinstance(value.const, str) and value.const != ""
        is_number = isinstance(value.const, int | float) and not isinstance(value.const, bool)
        if self.frames[-1].absent and (is_text or (is_number and value.const >= 0)):
            paid = {PAID} if is_number and value.const > 0 else set[str]()
            return replace(value, labels=value.labels | {DEFAULT} | paid)
        return value

    def absence(self, test: ast.expr) -> str:
        """Return the branch of a test in which nothing was found: `body`, `orelse`, or ""."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return {"body": "orelse", "orelse": "body"}.get(self.absence(inner), "")
            case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=None)]):
                if FOUND in self.value(left).labels:
                    return "body" if isinstance(op, ast.Is | ast.Eq) else "orelse"
                return ""
            case ast.Name() | ast.NamedExpr() | ast.Attribute() | ast.Call():
                return "orelse" if FOUND in self.value(test).labels else ""
        return ""


def _share(left: Value, right: Value) -> float:
    """Return the constant factor of a product with a number of the target; 0.0 for others."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one.const, int | float) and READS_TARGET in other.all:
            return float(one.const) * (other.share or 1.0)
    return 0.0


def _is_number(node: ast.expr) -> bool:
    """True for what is a number or a tuple of numbers, whose hash is the same in all processes."""
    match node:
        case ast.Constant(value=value):
            return not isinstance(value, str)
        case ast.Tuple(elts=parts):
            return all(map(_is_number, parts))
        case ast.BinOp() | ast.UnaryOp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in ("int", "float", "len", "abs", "round", "ord")
    return False
